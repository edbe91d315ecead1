"""One adapter per domain: nothing is forgotten, because nothing is shared."""

from collections.abc import Mapping
from random import Random

from typing_extensions import override

from grpo_cl.algorithms.base import TrainerView
from grpo_cl.algorithms.routed import RoutedCL
from grpo_cl.policy.continual.adapters import is_new, new_adapter, require_adapter
from grpo_cl.types import Record


class DomainLoraOptions(Record):
    """How an adapter begins."""

    warm_start: bool = False
    """Whether a domain goes on with the adapter of the one before."""


class DomainLoraCL(RoutedCL[DomainLoraOptions]):
    """Learns each domain in an adapter of its own, which is chosen by the domain's name."""

    options_type = DomainLoraOptions
    cost = "memory for one adapter per domain"

    @override
    def bind(self, trainer: TrainerView) -> None:
        require_adapter(trainer.policy.learner, "domain_lora")
        super().bind(trainer)
        self._config = trainer.config

    @override
    def before_task(self, domain: str) -> None:
        super().before_task(domain)
        if domain == self._config.task_order[0]:
            return  # the adapter the run started with is new
        if not self.options.warm_start:
            self._begin_adapter(domain)
        self.learner.forget_moments()

    @override
    def telemetry(self) -> Mapping[str, float]:
        return {"cl/adapters": float(len(self.shelf) + 1)}

    def _begin_adapter(self, domain: str) -> None:
        start = self.shelf.start
        if is_new(start):
            seed = Random(f"{self._config.seed}/adapter/{domain}").getrandbits(48)
            start = new_adapter(start, seed)
        self.shelf.load(start)
