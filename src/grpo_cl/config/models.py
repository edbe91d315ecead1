"""Config sections of models behind an API (user simulator, judge) and of the memory domain."""

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    JsonValue,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from grpo_cl.config.base import ConfigRecord, Seconds
from grpo_cl.errors import ConfigError

LOWEST_TEMPERATURE = 1e-3


def _is_sampled_or_greedy(temperature: float) -> float:
    if 0 < temperature < LOWEST_TEMPERATURE:
        raise ValueError(
            f"a temperature below {LOWEST_TEMPERATURE} overflows the logits; 0 is greedy decoding"
        )
    return temperature


Temperature = Annotated[float, Field(ge=0, le=100), AfterValidator(_is_sampled_or_greedy)]
"""0 for greedy decoding; at 100 sampling is uniform for every practical purpose."""

LOCAL_USERS = frozenset({"policy", "frozen"})
"""Values of ``user.model`` for a policy of the run: the one under training, or the initial one."""

_PROVIDERS = {
    "openai": re.compile(r"(?:gpt-(?!oss)|chatgpt-|o[1-9](?:-|$))"),  # gpt-oss has open weights
    "anthropic": re.compile(r"claude-"),
    "google": re.compile(r"gemini-"),
    "grok": re.compile(r"grok-"),
    "deepseek": re.compile(r"deepseek-(?:chat|reasoner)"),
    "mistral": re.compile(r"mistral-(?:large|medium|small)"),
}
"""Beginnings of model names that only one provider has."""


def hosted_model_name(name: str) -> str:
    """PROVIDER/MODEL; a known name without its provider gets it, as ``gpt-4o`` of OpenAI."""
    if "/" in name:
        return name
    for provider, pattern in _PROVIDERS.items():
        if pattern.match(name):
            return f"{provider}/{name}"
    raise ConfigError(
        f"the model {name!r} names no provider; write PROVIDER/MODEL, such as openai/gpt-4o, or "
        f"openai-api/SERVICE/{name} for an OpenAI-compatible server"
    )


MODEL_HINT = (
    "give a local directory or a GGUF file, `tiny` for the embedded policy, "
    "or run `grpo-cl fetch-model smollm2-135m`"
)

_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


def require_model_place(name: str) -> None:
    """Refuse the name of a policy's model that is neither on the disk nor the form of a hub id."""
    path = Path(name).expanduser()
    if not path.exists() and (path.is_absolute() or not _HUB_ID.fullmatch(name)):
        raise ConfigError(f"no model at {name!r}; {MODEL_HINT}")


def _user_model_name(name: str) -> str:
    return name if name in LOCAL_USERS else hosted_model_name(name)


HostedModelName = Annotated[str, AfterValidator(hosted_model_name)]


def default_cache_dir() -> Path:
    """The default reply cache, shared by all runs."""
    return Path.home() / ".cache" / "grpo-cl" / "replies"


class ModelsConfig(ConfigRecord):
    """Calls of models behind an API, in every role: docs/users.md."""

    timeout_s: Seconds = 120.0
    """Timeout of one attempt."""
    retries: NonNegativeInt = 6
    """Retries after a rate limit, a server error, a timeout or an unreadable reply."""
    backoff_s: Seconds = 1.0
    """Delay before the first retry; it doubles with each, and a server may ask for a longer one."""
    max_backoff_s: Seconds = 60.0
    """Longest delay before a retry."""
    concurrency: PositiveInt = 16
    """Maximum concurrent calls."""
    requests_per_minute: PositiveFloat | None = None
    """Rate limit of all calls together; None for no limit."""
    cache_dir: Path | None = Field(default_factory=default_cache_dir)
    """Reply cache, keyed by everything a reply depends on, without replies that could not be used;
    null disables it."""
    budget_tokens: PositiveInt | None = None
    """Maximum input and output tokens of a run, estimated where an endpoint reports none."""
    budget_money: PositiveFloat | None = None
    """Maximum cost of a run, by ``prices``."""
    prices: dict[HostedModelName, tuple[NonNegativeFloat, NonNegativeFloat]] = Field(
        default_factory=dict
    )
    """Price per 1000 input and output tokens of each model."""


class ModelRole(ConfigRecord):
    """A model behind an API in one role."""

    model: HostedModelName | None = None
    """PROVIDER/MODEL as for ``user.model``; None for no model."""
    base_url: str | None = None
    """Endpoint URL; None uses the provider's default and its environment variables."""
    temperature: Temperature = 0.0
    """Sampling temperature of the model; 0 is greedy decoding."""
    max_tokens: PositiveInt
    """Maximum tokens of one reply."""


class UserConfig(ModelRole):
    """The model of the user simulator, for ``rollout.user`` llm, react, verify or reflection."""

    model: Annotated[str, AfterValidator(_user_model_name)] | None = None
    """PROVIDER/MODEL as Inspect names it (openai/gpt-4o, openai-api/SERVICE/MODEL, mockllm/model);
    well-known names such as gpt-4o need no provider. ``policy`` is the policy under training,
    ``frozen`` its weights before training."""
    max_tokens: PositiveInt = 1024
    """Maximum tokens of one reply."""
    checks: PositiveInt = 2
    """Maximum number of rewrites of a draft by ``verify``."""
    guard_retries: NonNegativeInt = 3
    """Retries of a user reply that fails the guards (docs/users.md)."""


class JudgeConfig(ModelRole):
    """The LLM judge of natural-language assertions; without a model they are not judged."""

    max_tokens: PositiveInt = 2048
    """Maximum tokens of one verdict."""
    votes: PositiveInt = 1
    """Number of judge calls; the majority decides, a tie counts as not met."""

    @model_validator(mode="after")
    def _votes_need_temperature(self) -> Self:
        if self.votes > 1 and not self.temperature:
            raise ValueError(
                "judge.votes above 1 require judge.temperature above 0; at 0 all votes are equal"
            )
        return self


class AnswererConfig(ModelRole):
    """The model that answers questions from the memory, and its context budget."""

    model: HostedModelName | None = None
    """PROVIDER/MODEL as for ``user.model``; None for rules that answer generated questions."""
    max_tokens: PositiveInt = 64
    """Maximum tokens of one answer."""
    context_tokens: PositiveInt = 256
    """Maximum tokens retrieved for one question, including the core memory."""
    context_entries: PositiveInt = 10
    """Maximum number of entries retrieved for one question."""
    question_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of an instance's questions that are asked; the same ones in every episode."""


class MemoryConfig(ConfigRecord):
    """The memory domain: docs/memory.md."""

    path: Path | None = None
    """A file or directory of instances; None for generated ones."""
    test_path: Path | None = None
    """Test instances; None holds out a fraction of ``path``."""
    format: str = "jsonl"
    """File format: jsonl, or that of a public benchmark (docs/memory.md)."""
    knobs: dict[str, JsonValue] = Field(default_factory=dict)
    """Generator parameters that override those of the difficulty, as memory.knobs.NAME."""
    view_tokens: PositiveInt = 256
    """Maximum tokens of the memory shown with each chunk."""
    stamp: bool = False
    """Whether an entry written without a date gets the date of its chunk."""
    beta: NonNegativeFloat = 0.05
    """Weight of the compression reward r3."""
    gamma: NonNegativeFloat = 0.1
    """Weight of the content reward r4."""
    credit: Literal["uniform", "evidence"] = "uniform"
    """Whether the answer reward r1 is given to all steps equally, or partly to the steps that wrote
    the evidence of the answers."""
    evidence_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """The fraction of r1 given to those steps."""
    answerer: AnswererConfig = AnswererConfig()
    judge: JudgeConfig = JudgeConfig()
    """The LLM judge of content validity; without a model, rules decide."""

    @model_validator(mode="after")
    def _test_path_needs_path(self) -> Self:
        if self.test_path and not self.path:
            raise ValueError("memory.test_path requires memory.path, the training instances")
        return self
