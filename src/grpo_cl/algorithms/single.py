"""Single-task training: the reference for transfer, with one separate policy per domain."""

from collections.abc import Mapping

from typing_extensions import override

from grpo_cl.algorithms.base import NoOptions
from grpo_cl.algorithms.routed import RoutedCL


class SingleCL(RoutedCL[NoOptions]):
    """Trains each domain from the run's initial policy, and evaluates each with its own."""

    cost = "memory for one copy of the weights per domain"

    @override
    def before_task(self, domain: str) -> None:
        super().before_task(domain)
        learner = self.trainer.policy.learner
        learner.load_weights(self.policies.initial)
        learner.reset_optimizer()

    @override
    def telemetry(self) -> Mapping[str, float]:
        return {"cl/policies_kept": float(len(self.policies))}
