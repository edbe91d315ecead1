"""What a domain is: tasks in splits, and an environment with tools for each episode."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.types import EnvAssertion, Task, ToolCall, ToolResult

ToolSchema = Mapping[str, Any]
"""A function schema as chat templates and OpenAI-compatible servers take it."""

DONE = "done"
"""The tool an agent without a user calls to end its episode."""


class StateHash(NamedTuple):
    """τ²-bench's hash of each side's database; None where a side has none."""

    agent: str | None
    user: str | None


class State(NamedTuple):
    """What an episode changed, by (table, key); two states are equal if their worlds are."""

    agent: Mapping[tuple[str, str], str | None]
    user: Mapping[tuple[str, str], str | None]


class Environment(ABC):
    """The world of one episode. Made fresh for each episode and thrown away after it."""

    @abstractmethod
    def call(self, call: ToolCall) -> ToolResult:
        """Run one tool call. What the caller did wrong is an error result, never an exception."""

    @abstractmethod
    def perform(self, call: ToolCall) -> str | None:
        """Run a gold action as τ²-bench's evaluator does; returns the error it met, if any."""

    @abstractmethod
    def mutates(self, call: ToolCall) -> bool:
        """Whether the call names a tool that writes."""

    @abstractmethod
    def holds(self, assertion: EnvAssertion) -> bool:
        """Whether the assertion is met now; raises ``TaskDataError`` if it cannot be run."""

    @abstractmethod
    def state(self) -> State:
        """What differs from the base databases."""

    def base(self, state: State) -> State:
        """What the base databases hold where ``state`` says something; here they are empty."""
        return State(dict.fromkeys(state.agent), dict.fromkeys(state.user))

    @abstractmethod
    def state_hash(self) -> StateHash:
        """The same numbers τ²-bench computes over the whole databases."""

    def tell(self) -> str | None:
        """What the world says to the agent next, in a narrated domain; None once all is told."""
        return None


class Domain(ABC):
    """A named family of tasks that share tools and a policy."""

    name: str
    without_solution: frozenset[str] = frozenset()
    """Tasks whose gold actions do not meet their own criteria, in the reference either."""
    can_generate: bool = False
    is_narrated: bool = False
    """Whether the environment itself speaks to the agent, whoever else is the user of a run."""

    def configured(self, config: GRPOConfig) -> "Domain":
        """The domain as a run wants it; most have nothing to set."""
        del config
        return self

    @property
    @abstractmethod
    def release(self) -> str:
        """Which release of the tasks this is; recorded with every result."""

    @property
    @abstractmethod
    def splits(self) -> Mapping[str, Sequence[str]]:
        """Task ids by split, in a fixed order. A domain without a split of its own has ``base``."""

    @abstractmethod
    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of one split, always in the same order."""

    @abstractmethod
    def has_task(self, task_id: str) -> bool:
        """Whether the id names a task of this domain, of its files or of its generator."""

    @abstractmethod
    def task(self, task_id: str) -> Task:
        """One task by its id."""

    @abstractmethod
    def environment(self, task: Task, *, solo: bool = False) -> Environment:
        """A fresh environment, ready for the first turn of ``task``."""

    @abstractmethod
    def policy_text(self, *, solo: bool = False) -> str:
        """The rules the agent must follow."""

    @abstractmethod
    def tools(self, *, solo: bool = False) -> Sequence[ToolSchema]:
        """What the agent may call; alone, the user's tools and ``done`` too."""

    @property
    @abstractmethod
    def user_tools(self) -> Sequence[ToolSchema]:
        """What the user may call."""

    def generate(
        self, *, seed: int, count: int, split: str = "train", difficulty: float | None = None
    ) -> list[Task]:
        """Make ``count`` verified tasks; difficulty in [0, 1], or None for a mixture of all."""
        del seed, count, split, difficulty
        raise ConfigError(f"domain {self.name!r} has no task generator")
