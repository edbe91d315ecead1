"""Interfaces of a domain (tasks in splits) and an environment (tools and state of an episode)."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple, Protocol

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.llm import ModelPool
from grpo_cl.types import (
    EnvAssertion,
    Reward,
    Task,
    ToolCall,
    ToolResult,
    ToolSchema,
    Trajectory,
)

DONE = "done"
"""The tool that ends an episode without a user."""

STOP = "###STOP###"
"""A user message with this token, or an environment with no further observation, ends an episode.
"""

WITH_USER = (
    "You are a customer service agent and help the user as the policy below allows. In each turn "
    "either write to the user or call a tool, never both."
)
SOLO = (
    "You are a customer service agent and work on the ticket below on your own: nobody answers "
    "messages. Every turn is a tool call. Follow the policy. Call `done` at the end."
)


class StateHash(NamedTuple):
    """τ²-bench's hashes of the agent's and the user's database; None if there is no database."""

    agent: str | None
    user: str | None


class State(NamedTuple):
    """Records that an episode changed, by (table, key); equal states mean equal databases."""

    agent: Mapping[tuple[str, str], str | None]
    user: Mapping[tuple[str, str], str | None]


class Environment(ABC):
    """Tools and databases of one episode; created for the episode and discarded after it."""

    @abstractmethod
    def call(self, call: ToolCall) -> ToolResult:
        """Run one tool call; a wrong call returns an error result and never raises."""

    @abstractmethod
    def perform(self, call: ToolCall) -> str | None:
        """Run a gold action as τ²-bench's evaluator does; returns the error text, if any."""

    @abstractmethod
    def mutates(self, call: ToolCall) -> bool:
        """Whether the called tool writes to a database."""

    @abstractmethod
    def holds(self, assertion: EnvAssertion) -> bool:
        """Whether the assertion holds now; raises ``TaskDataError`` if it cannot be evaluated."""

    @abstractmethod
    def state(self) -> State:
        """The records that differ from the base databases."""

    def base(self, state: State) -> State:
        """The records of ``state`` as the base databases have them; empty databases by default."""
        return State(dict.fromkeys(state.agent), dict.fromkeys(state.user))

    @abstractmethod
    def state_hash(self) -> StateHash:
        """τ²-bench's hashes of the whole databases."""


class StreamingEnvironment(Environment):
    """An environment that sends the agent one observation after another; there is no user."""

    @abstractmethod
    def next_observation(self) -> str | None:
        """The next text the agent reads; None after the last one."""


class EpisodeScorer(Protocol):
    """Scores the episodes of a domain by rules of its own."""

    @property
    def calls_models(self) -> bool:
        """Whether a score needs replies of other models."""
        ...

    def score(self, trajectory: Trajectory) -> Reward:
        """The reward of an episode, with rewards per step where the domain has them.

        Raises ``ModelCallError`` if a model is needed and does not answer.
        """
        ...


class Demonstrator(Protocol):
    """Solves tasks of a domain by rules of its own."""

    def __call__(self, task: Task, *, error_rng: Random | None) -> Trajectory | None:
        """An episode that solves ``task``; None if the gold actions do not solve it.

        With ``error_rng`` one error drawn from it is injected.
        """
        ...


class Domain(ABC):
    """A named set of tasks that share tools and a policy."""

    name: str
    without_solution: frozenset[str] = frozenset()
    """Tasks whose gold actions do not meet their own criteria, in τ²-bench either."""
    can_generate: bool = False
    own_tools: frozenset[str] = frozenset()
    """Names of the tools that the user of the domain added to it."""

    def configured(self, config: GRPOConfig) -> "Domain":
        """The domain with the settings of a run; most domains have no settings."""
        del config
        return self

    @property
    @abstractmethod
    def release(self) -> str:
        """The release of the domain's own tasks, recorded with every result."""

    @property
    def release_with_generated(self) -> str:
        """The release of its own and its generated tasks, for results of runs that use both."""
        return self.release

    def release_of(self, task: Task) -> str:
        """The release that ``task`` belongs to."""
        del task
        return self.release

    @property
    @abstractmethod
    def splits(self) -> Mapping[str, Sequence[str]]:
        """Task ids by split, in a fixed order; a domain without splits has only ``base``."""

    @abstractmethod
    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of one split, always in the same order."""

    @abstractmethod
    def has_task(self, task_id: str) -> bool:
        """Whether the id belongs to a task of this domain, from its files or its generator."""

    @abstractmethod
    def task(self, task_id: str) -> Task:
        """The task with this id."""

    @abstractmethod
    def environment(self, task: Task, *, solo: bool = False) -> Environment:
        """A new environment in the initial state of ``task``."""

    @abstractmethod
    def policy_text(self, *, solo: bool = False) -> str:
        """The policy that the agent must follow."""

    @abstractmethod
    def tools(self, *, solo: bool = False) -> Sequence[ToolSchema]:
        """The agent's tools; with ``solo`` also the user's tools and ``done``."""

    @property
    @abstractmethod
    def user_tools(self) -> Sequence[ToolSchema]:
        """The user's tools."""

    def system_prompt(self, ticket: str | None, *, compact: bool = False) -> str:
        """The system prompt; ``ticket`` is None if a user states the request.

        ``compact`` leaves out policy and instructions.
        """
        if compact:
            return ticket or ""
        policy = f"<policy>\n{self.policy_text(solo=ticket is not None)}\n</policy>"
        if ticket is None:
            return f"{WITH_USER}\n\n{policy}"
        return f"{SOLO}\n\n{policy}\n\n<ticket>\n{ticket}\n</ticket>"

    def demonstration_calls(self, task: Task) -> list[ToolCall]:
        """The agent's calls of a demonstration, before unneeded reads are left out."""
        return [
            action.call.model_copy(update={"requestor": "assistant"})
            for action in task.gold_actions
        ]

    def demonstration_task(self, task: Task) -> Task:
        """The task to demonstrate in place of ``task``: an equal one that teaches more."""
        return task

    # Optional parts; None selects the general one.

    def streaming_environment(self, task: Task) -> StreamingEnvironment | None:
        """An environment that drives the episode; None if a user or a ticket does."""
        del task
        return None

    def scorer(self, models: ModelPool | None = None) -> EpisodeScorer | None:
        """The domain's own scorer, which may call ``models``; None for τ²-bench's evaluation."""
        del models
        return None

    @property
    def demonstrator(self) -> Demonstrator | None:
        """The domain's own demonstrator; None for one that plays ``demonstration_calls``."""
        return None

    def generate(
        self, *, seed: int, count: int, split: str = "train", difficulty: float | None = None
    ) -> list[Task]:
        """``count`` verified tasks; ``difficulty`` is in [0, 1], None mixes all difficulties."""
        del seed, count, split, difficulty
        raise ConfigError(f"domain {self.name!r} has no task generator")
