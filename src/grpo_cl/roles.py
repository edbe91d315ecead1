"""Sections of a run's description for those who take part in it besides the policy."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    JsonValue,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from grpo_cl.records import Record

Temperature = Annotated[float, Field(ge=0)]
Price = Annotated[float, Field(ge=0)]


def default_cache_dir() -> Path:
    """Where replies are kept unless told otherwise; runs share them."""
    return Path.home() / ".cache" / "grpo-cl" / "replies"


class ModelsConfig(Record):
    """How models behind an API are called, whichever part they play: docs/users.md."""

    timeout_s: PositiveFloat = 120.0
    """Of one attempt."""
    retries: NonNegativeInt = 6
    """Further attempts after a rate limit, a server error, a time-out or an unreadable reply."""
    backoff_s: PositiveFloat = 1.0
    """Pause before the first retry; it doubles with each, and a server may ask for longer."""
    max_backoff_s: PositiveFloat = 60.0
    concurrency: PositiveInt = 16
    """Calls under way at once."""
    requests_per_minute: PositiveFloat | None = None
    cache_dir: Path | None = Field(default_factory=default_cache_dir)
    """Where replies are kept by all that they depend on; null asks again each time."""
    budget_tokens: PositiveInt | None = None
    """Tokens, in and out, that a run may use."""
    budget_money: PositiveFloat | None = None
    """What a run may cost, by ``prices``."""
    prices: dict[str, tuple[Price, Price]] = Field(default_factory=dict)
    """For each model what 1000 tokens cost, read and written."""


class ModelRole(Record):
    """A part that a model may have."""

    model: str | None = None
    base_url: str | None = None
    """Of the endpoint; None leaves it to the provider and its environment variables."""
    temperature: Temperature = 0.0
    max_tokens: PositiveInt
    """Of one message."""


class UserConfig(ModelRole):
    """A model that plays the user, if ``rollout.user`` is llm, react, verify or reflection."""

    model: str | None = None
    """PROVIDER/MODEL as Inspect names it (openai/gpt-4o, openai-api/SERVICE/MODEL, mockllm/model),
    ``policy`` for the policy under training, or ``frozen`` for it as it was before training."""
    max_tokens: PositiveInt = 1024
    checks: PositiveInt = 2
    """How often ``verify`` has a draft rewritten at most."""
    guard_retries: NonNegativeInt = 3
    """How often a reply is asked for again that no customer would give."""


class JudgeConfig(ModelRole):
    """A model that decides natural-language assertions; without one they are not judged."""

    max_tokens: PositiveInt = 2048
    votes: PositiveInt = 1
    """How often the judge is asked; the majority decides, and a tie is against the agent."""

    @model_validator(mode="after")
    def _votes_can_differ(self) -> Self:
        if self.votes > 1 and not self.temperature:
            raise ValueError("judge.votes above 1 need judge.temperature above 0, or all agree")
        return self


class AnswererConfig(ModelRole):
    """Who answers the questions about a memory, and how much of it may be read for each."""

    model: str | None = None
    """PROVIDER/MODEL as for ``user.model``; None for the reader of generated instances, which is no
    model."""
    max_tokens: PositiveInt = 64
    context_tokens: PositiveInt = 256
    """Of what is read for one question, the core text included."""
    context_entries: PositiveInt = 10
    question_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Of an instance's questions, those that are asked; the same ones in every episode."""


class MemoryConfig(Record):
    """The domain ``memory``: docs/memory.md."""

    path: Path | None = None
    """A file or folder of instances; None for generated ones."""
    test_path: Path | None = None
    """Those that a policy is measured on; None measures on a share of ``path``."""
    format: str = "jsonl"
    """Of the file: ours, or that of a public benchmark."""
    knobs: dict[str, JsonValue] = Field(default_factory=dict)
    """Dials of the generator that do not follow the difficulty, each as memory.knobs.NAME."""
    view_tokens: PositiveInt = 256
    """Of the memory that is shown with each chunk."""
    stamp: bool = False
    """Whether an entry whose writer names no date gets that of its chunk."""
    beta: Annotated[float, Field(ge=0)] = 0.05
    """Weight of compression in the reward of a step."""
    gamma: Annotated[float, Field(ge=0)] = 0.1
    """Weight of valid content in the reward of a step."""
    credit: Literal["uniform", "evidence"] = "uniform"
    """Whether the reward for answers goes to all steps alike, or partly to those which wrote what
    the answers rest on."""
    evidence_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """The part that goes to them."""
    answerer: AnswererConfig = AnswererConfig()
    judge: JudgeConfig = JudgeConfig()
    """Who decides whether content is valid; rules do where no model is named."""

    @model_validator(mode="after")
    def _test_path_has_a_use(self) -> Self:
        if self.test_path and not self.path:
            raise ValueError("memory.test_path goes with memory.path, the instances to learn from")
        return self
