"""One LoRA adapter per domain: domains share no trained weights, so nothing is forgotten."""

from collections.abc import Mapping
from random import Random

from typing_extensions import override

from grpo_cl.algorithms.base import TrainerView
from grpo_cl.algorithms.routed import RoutedCL
from grpo_cl.config import ConfigRecord
from grpo_cl.policy.continual.adapters import is_untrained, new_adapter, require_adapter
from grpo_cl.policy.continual.tensors import Tensors


class DomainLoraOptions(ConfigRecord):
    """How an adapter is initialized."""

    warm_start: bool = False
    """Whether a domain continues with the adapter of the previous one."""


class DomainLoraCL(RoutedCL[DomainLoraOptions]):
    """Trains each domain in an adapter of its own, which is selected by the domain's name."""

    options_type = DomainLoraOptions
    cost = "memory for one adapter per domain"

    @override
    def bind(self, trainer: TrainerView) -> None:
        require_adapter(trainer.policy.learner, "domain_lora")
        super().bind(trainer)

    @override
    def before_task(self, domain: str) -> None:
        super().before_task(domain)
        if domain == self.trainer.config.task_order[0]:
            return  # the run's initial adapter is new
        learner = self.trainer.policy.learner
        if not self.options.warm_start:
            learner.load_weights(self._initial_adapter(domain))
        learner.reset_optimizer()

    @override
    def telemetry(self) -> Mapping[str, float]:
        return {"cl/adapters": float(len(self.policies) + 1)}

    def _initial_adapter(self, domain: str) -> Tensors:
        initial = self.policies.initial
        if not is_untrained(initial):
            return initial
        seed = Random(f"{self.trainer.config.seed}/adapter/{domain}").getrandbits(48)
        return new_adapter(initial, seed)
