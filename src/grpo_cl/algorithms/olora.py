"""O-LoRA (Wang et al. 2023, arXiv:2310.14152): orthogonal adapters, one per domain."""

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from pydantic import NonNegativeFloat
from typing_extensions import override

from grpo_cl.algorithms.base import CLAlgorithm, TrainerView
from grpo_cl.config import ConfigRecord, GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.policy.continual.adapters import (
    AdapterStack,
    is_untrained,
    new_adapter,
    require_adapter,
)


class OLoraOptions(ConfigRecord):
    """Weight of the orthogonality loss."""

    strength: NonNegativeFloat = 0.5
    """Weight of the overlap with earlier adapters; 0 stacks adapters without a penalty."""


class OLoraCL(CLAlgorithm[OLoraOptions]):
    """Adds an adapter per domain to the frozen earlier ones and penalizes their overlap."""

    options_type = OLoraOptions
    stores = "weights"
    cost = "one more low-rank product per layer and earlier domain"
    shares_first_stage = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._penalty = 0.0

    @override
    def check(self, config: GRPOConfig) -> None:
        if config.sharding != "none":
            raise ConfigError(
                f"olora adds adapters during training, which sharding={config.sharding} does not "
                "support; leave sharding out, or use domain_lora"
            )

    @override
    def bind(self, trainer: TrainerView) -> None:
        super().bind(trainer)
        learner = trainer.policy.learner
        require_adapter(learner, "olora")
        if not is_untrained(learner.weights()):
            raise ConfigError(
                f"olora starts with a new adapter, but {trainer.config.model_name_or_path} has a "
                "trained one; merge it into its base model and start from that"
            )
        self._stack = AdapterStack(learner)

    @override
    def before_task(self, domain: str) -> None:
        config, learner = self.trainer.config, self.trainer.policy.learner
        if domain == config.task_order[0]:
            return
        self._stack.push()
        seed = Random(f"{config.seed}/adapter/{domain}").getrandbits(48)
        learner.load_weights(new_adapter(learner.weights(), seed))
        learner.reset_optimizer()

    @override
    def auxiliary_loss(self, policy: Any) -> Any:
        if not len(self._stack) or not self.options.strength:
            return None
        penalty = self.options.strength * self._stack.overlap()
        self._penalty = float(penalty.detach())
        return penalty

    @override
    def telemetry(self) -> Mapping[str, float]:
        metrics = {"cl/adapters": float(len(self._stack) + 1)}
        if len(self._stack):
            metrics["cl/orthogonality_loss"] = self._penalty
        return metrics

    @override
    def save_state(self, folder: Path) -> None:
        self._stack.save(folder)

    @override
    def load_state(self, folder: Path) -> None:
        self._stack.load(folder)
