"""O-LoRA (Wang et al. 2023, arXiv:2310.14152): each domain learns in directions of its own."""

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from pydantic import NonNegativeFloat
from typing_extensions import override

from grpo_cl.algorithms.base import CLAlgorithm, TrainerView
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.policy.continual.adapters import (
    AdapterStack,
    is_new,
    new_adapter,
    require_adapter,
)
from grpo_cl.types import Record


class OLoraOptions(Record):
    """How far apart the adapters are kept."""

    strength: NonNegativeFloat = 0.5
    """Weight of the overlap with earlier adapters; 0 stacks them without keeping them apart."""


class OLoraCL(CLAlgorithm[OLoraOptions]):
    """Adds an adapter per domain to the frozen ones before it and punishes their overlap."""

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
                f"olora adds adapters while it learns and sharding={config.sharding} is "
                "done before; leave sharding out, or use domain_lora"
            )

    @override
    def bind(self, trainer: TrainerView) -> None:
        super().bind(trainer)
        self._config = trainer.config
        self._learner = trainer.policy.learner
        require_adapter(self._learner, "olora")
        if not is_new(self._learner.weights()):
            raise ConfigError(
                f"olora begins with a new adapter and {trainer.config.model_name_or_path} has one "
                "that was trained; merge it into its base model and start from that"
            )
        self._stack = AdapterStack(self._learner)

    @override
    def before_task(self, domain: str) -> None:
        if domain == self._config.task_order[0]:
            return
        self._stack.push()
        seed = Random(f"{self._config.seed}/adapter/{domain}").getrandbits(48)
        self._learner.load_weights(new_adapter(self._learner.weights(), seed))
        self._learner.forget_moments()

    @override
    def auxiliary_loss(self, policy: Any) -> Any:
        if not len(self._stack) or not self.options.strength:
            return None
        penalty = self.options.strength * self._stack.overlap()
        self._penalty = float(penalty.detach())
        return penalty

    @override
    def telemetry(self) -> Mapping[str, float]:
        numbers = {"cl/adapters": float(len(self._stack) + 1)}
        if len(self._stack):
            numbers["cl/orthogonality_loss"] = self._penalty
        return numbers

    @override
    def save_state(self, folder: Path) -> None:
        self._stack.save(folder)

    @override
    def load_state(self, folder: Path) -> None:
        self._stack.read(folder)
