"""The settings of the earlier trainer, and the run they describe."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError

from grpo_cl.config import GRPOConfig
from grpo_cl.domains.overlay import deep_update
from grpo_cl.errors import ConfigError
from grpo_cl.records import Record

Weight = Annotated[float, Field(ge=0)]


class MemorySettings(Record):
    """What the earlier trainer could be told; the defaults are the paper's (arXiv:2509.25911)."""

    model_name_or_path: str = "Qwen/Qwen3-4B"
    learning_rate: PositiveFloat = 1e-6
    batch_size: PositiveInt = 32
    """Instances of one step."""
    grpo_rollout_n: Annotated[int, Field(ge=2)] = 8
    """Episodes of each instance; they are each other's baseline."""
    clip_epsilon: PositiveFloat = 0.2
    max_steps: PositiveInt = 205
    """Updates, over all calls of ``train`` together."""
    beta: Weight = 0.05
    gamma: Weight = 0.1
    kl_coef: Weight = 0.0
    core_max_tokens: Literal[512] = 512
    """The limit of the core text, which every memory keeps."""
    max_chunk_tokens: PositiveInt = 2000
    """The longest chunk that is taken."""
    seed: NonNegativeInt = 0
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """Any other setting of a run, as in a config file."""

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> "MemorySettings":
        """The settings, or which of them is wrong."""
        try:
            return cls.model_validate(dict(given))
        except ValidationError as error:
            known = ", ".join(cls.model_fields)
            raise ConfigError(f"wrong settings: {error}; known are {known}") from error

    def run(self, files: Mapping[str, Path], changes: Mapping[str, Any]) -> GRPOConfig:
        """The run over the instances in ``files``, with ``changes`` to what the settings say."""
        described: dict[str, Any] = {
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
        }
        whole = deep_update(deep_update(described, self.settings), dict(changes))
        try:
            return GRPOConfig.model_validate(whole)
        except ValidationError as error:
            raise ConfigError(f"the settings describe no run: {error}") from error
