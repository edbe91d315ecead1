"""The settings of a supervised fine-tuning: options of ``grpo-cl sft``, and those of the model."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from grpo_cl.config.base import ConfigRecord, Share
from grpo_cl.config.run import GRPOConfig
from grpo_cl.errors import ConfigError


class SFTOptions(ConfigRecord):
    """The options of ``grpo-cl sft``."""

    domain: Annotated[tuple[str, ...], Field(min_length=1)] = ("airline", "retail", "telecom")
    """Domains of the demonstrations."""
    count: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] = (1000,)
    """Tasks per domain and difficulty: one value, or one for each domain; with ``fresh`` their
    ratio counts."""
    own: NonNegativeInt = 0
    """Own training tasks of each domain that are drawn with replacement, besides the generated
    ones; with ``fresh`` their ratio to ``count`` counts."""
    fresh: bool = False
    """Whether every batch has new tasks, instead of those of one fixed set."""
    difficulty: tuple[Share, ...] | None = None
    """Difficulties, for all domains; None takes ``tasks.difficulty``."""
    mistakes: Share = 0.0
    """Fraction of demonstrations with an injected error."""
    steps: NonNegativeInt = 300
    """Optimizer steps."""
    batch_size: PositiveInt = 16
    """Demonstrations per step."""
    seed: int = 0
    """Seed of the demonstrations and their order."""
    workers: PositiveInt = 2
    """Processes that generate demonstrations; their number changes no demonstration."""
    log_interval: PositiveInt = 50
    """Steps between printed losses."""
    save_interval: PositiveInt = 200
    """Steps between checkpoints."""
    new_tiny: bool = False
    """Whether to start from a new, untrained tiny policy."""
    width: PositiveInt = 192
    """Hidden size of a new tiny policy."""
    layers: PositiveInt = 6
    """Layers of a new tiny policy."""
    context: PositiveInt | None = None
    """Context length to which the model is extended."""

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of tasks of each domain."""
        if len(self.count) == 1:
            return self.count * len(self.domain)
        if len(self.count) != len(self.domain):
            raise ConfigError(
                f"--count has {len(self.count)} values for {len(self.domain)} domains; "
                "give one value, or one per domain"
            )
        return self.count

    @property
    def makes_model(self) -> bool:
        """Whether the model to train is made first: a new one, or one with a longer context."""
        return self.new_tiny or self.context is not None


class SFTSettings(ConfigRecord):
    """Everything that decides the result of a fine-tuning."""

    format: Literal[1] = 1
    options: SFTOptions
    config: GRPOConfig
    """Of a run's settings, those of the model, the optimizer, the prompts and the domains."""
