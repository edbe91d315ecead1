"""Sections of a run's description for the parts that models behind an API play in it."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

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


class UserConfig(Record):
    """A model that plays the user, if ``rollout.user`` is llm, react, verify or reflection."""

    model: str | None = None
    """PROVIDER/MODEL as Inspect names it (openai/gpt-4o, openai-api/SERVICE/MODEL, mockllm/model),
    ``policy`` for the policy under training, or ``frozen`` for it as it was before training."""
    base_url: str | None = None
    """Of the endpoint; None leaves it to the provider and its environment variables."""
    temperature: Temperature = 0.0
    max_tokens: PositiveInt = 1024
    """Of one message."""
    checks: PositiveInt = 2
    """How often ``verify`` has a draft rewritten at most."""
    guard_retries: NonNegativeInt = 3
    """How often a reply is asked for again that no customer would give."""


class JudgeConfig(Record):
    """A model that decides natural-language assertions; without one they are not judged."""

    model: str | None = None
    base_url: str | None = None
    temperature: Temperature = 0.0
    max_tokens: PositiveInt = 2048
    votes: PositiveInt = 1
    """How often the judge is asked; the majority decides, and a tie is against the agent."""

    @model_validator(mode="after")
    def _votes_can_differ(self) -> Self:
        if self.votes > 1 and not self.temperature:
            raise ValueError("judge.votes above 1 need judge.temperature above 0, or all agree")
        return self
