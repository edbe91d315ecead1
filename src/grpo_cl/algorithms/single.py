"""The reference for transfer: every domain is learned alone."""

from collections.abc import Mapping

from typing_extensions import override

from grpo_cl.algorithms.base import NoOptions
from grpo_cl.algorithms.routed import RoutedCL


class SingleCL(RoutedCL[NoOptions]):
    """Learns each domain from the policy the run started from, and measures each with its own."""

    cost = "memory for one copy of the weights per domain"

    @override
    def before_task(self, domain: str) -> None:
        super().before_task(domain)
        self.shelf.load(self.shelf.start)
        self.learner.forget_moments()

    @override
    def telemetry(self) -> Mapping[str, float]:
        return {"cl/policies_kept": float(len(self.shelf))}
