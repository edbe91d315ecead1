"""The settings of Mem-α's trainer, and the run config they map to."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError

from grpo_cl.config import GRPOConfig, deep_update
from grpo_cl.errors import ConfigError
from grpo_cl.types import Record, first_problem

Weight = Annotated[float, Field(ge=0)]


class MemorySettings(Record):
    """The config keys of Mem-α's trainer; the defaults are the paper's (arXiv:2509.25911)."""

    model_name_or_path: str = "Qwen/Qwen3-4B"
    learning_rate: PositiveFloat = 1e-6
    batch_size: PositiveInt = 32
    """Instances per step."""
    grpo_rollout_n: Annotated[int, Field(ge=2)] = 8
    """Episodes per instance: the group size."""
    clip_epsilon: PositiveFloat = 0.2
    max_steps: PositiveInt = 205
    """Policy updates over all calls of ``train``."""
    beta: Weight = 0.05
    gamma: Weight = 0.1
    kl_coef: Weight = 0.0
    core_max_tokens: Literal[512] = 512
    """The limit of the core text, which is fixed."""
    max_chunk_tokens: PositiveInt = 2000
    """The longest chunk accepted."""
    seed: NonNegativeInt = 0
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """Other keys of the run config."""

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> "MemorySettings":
        """The validated settings; raises ``ConfigError`` with the wrong key."""
        try:
            return cls.model_validate(dict(given))
        except ValidationError as error:
            known = ", ".join(cls.model_fields)
            raise ConfigError(f"wrong settings: {first_problem(error)}; known: {known}") from error

    def run(self, files: Mapping[str, Path], changes: Mapping[str, Any]) -> GRPOConfig:
        """The run config over the instances in ``files``, with ``changes`` applied last."""
        config: dict[str, Any] = {
            "model_name_or_path": self.model_name_or_path,
            "task_order": ("memory",),
            "temperature": 1.0,
            "learning_rate": self.learning_rate,
            "num_samples_per_prompt": self.grpo_rollout_n,
            "kl_coef": self.kl_coef,
            "gradient_accumulation_steps": 1,
            "loss": {
                "advantage": "std",
                "epsilon_low": self.clip_epsilon,
                "epsilon_high": self.clip_epsilon,
            },
            "memory": {"beta": self.beta, "gamma": self.gamma, **files},
            # The given instances only: the defaults of ``tiny`` are generated tasks.
            "tasks": {"own": True, "generated": 0},
            "evaluation": {"generated": 0},
        }
        merged = deep_update(deep_update(config, self.settings), dict(changes))
        try:
            return GRPOConfig.model_validate(merged)
        except ValidationError as error:
            raise ConfigError(
                f"the settings are no valid run config: {first_problem(error)}"
            ) from error
