"""Domains in τ²-bench's format: task files, splits, policies and the environment of an episode."""

import hashlib
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Self

from pydantic import ValidationError
from typing_extensions import override

from grpo_cl.config import GRPOConfig, TaskWording
from grpo_cl.envs.base import DONE, Domain, Environment, State, StateHash
from grpo_cl.envs.database import EpisodeDatabase, SharedDatabase, to_json
from grpo_cl.envs.generation.tasks import (
    GENERATOR_RELEASE,
    Rewording,
    TaskMaker,
    allows_skills,
    draw_tasks,
)
from grpo_cl.envs.tau2_files import Source, find_source, read_file
from grpo_cl.envs.toolkit import TOOL_FAILURES, Toolkit, function_schema, render
from grpo_cl.errors import ConfigError, TaskDataError, ToolError
from grpo_cl.types import (
    EnvAssertion,
    EnvFunctionCall,
    RewardType,
    Task,
    ToolCall,
    ToolResult,
    ToolSchema,
    first_problem,
)

TASKS_VERSION = "0.2.0"
"""The grpo-cl version in which tasks or tools of its own domains last changed."""

DONE_TOOL = function_schema(
    DONE,
    "End the work on the ticket. Call this when it is solved, or when nothing more can be done.",
    {"type": "object", "properties": {}, "required": []},
)


class Tau2Environment(Environment):
    """The agent's toolkit and, in a domain with user tools, the user's toolkit."""

    def __init__(self, tools: Toolkit, user_tools: Toolkit | None, *, solo: bool) -> None:
        self.tools = tools
        self.user_tools = user_tools
        self.solo = solo

    def sync(self) -> None:
        """Propagate changes between the two databases; most domains have nothing to propagate."""

    @override
    def call(self, call: ToolCall) -> ToolResult:
        try:
            value = self._use(call)
            self.sync()
        except TOOL_FAILURES as error:
            return ToolResult(content=f"Error: {error}", error=True)
        return ToolResult(content=render(value))

    @override
    def perform(self, call: ToolCall) -> str | None:
        try:
            self._use(call)  # τ²-bench does not synchronise between gold actions
        except TOOL_FAILURES as error:
            return str(error)
        return None

    def _use(self, call: ToolCall) -> Any:
        users = self.user_tools
        if call.requestor == "user":
            if users is None:
                raise ToolError("User tools not available")
            return users.use(call.name, call.arguments)
        if self.solo and users is not None and call.name in users.tools:
            return users.use(call.name, call.arguments)
        return self.tools.use(call.name, call.arguments)

    @override
    def mutates(self, call: ToolCall) -> bool:
        users = self.user_tools
        return call.name in self.tools.writes or (users is not None and call.name in users.writes)

    @override
    def holds(self, assertion: EnvAssertion) -> bool:
        return self.run(assertion) == assertion.assert_value

    def run(self, function: EnvFunctionCall) -> Any:
        """Call any function of a toolkit, as initial states and assertions do."""
        toolkit = self.tools if function.env_type == "assistant" else self.user_tools
        where = f"{function.env_type} function {function.func_name!r}"
        if toolkit is None:
            raise TaskDataError(f"{where}: this domain has no user tools")
        try:
            return toolkit.run(function.func_name, function.arguments)
        except TOOL_FAILURES as error:
            raise TaskDataError(f"{where} with {function.arguments}: {error}") from error

    def start(self, task: Task) -> None:
        """Apply the initial actions and the message history of ``task``."""
        initial, history = task.initial_state, task.message_history
        for action in (initial and initial.initialization_actions) or ():
            self.run(action)
            self.sync()
        for call in chain.from_iterable(message.tool_calls or () for message in history):
            if self.mutates(call):
                self.call(call)
        self.sync()

    @override
    def state(self) -> State:
        users = self.user_tools
        return State(self.tools.db.changes(), users.db.changes() if users else {})

    @override
    def base(self, state: State) -> State:
        users = self.user_tools
        return State(self.tools.db.base(state.agent), users.db.base(state.user) if users else {})

    @override
    def state_hash(self) -> StateHash:
        users = self.user_tools
        return StateHash(self.tools.db.sha256(), users.db.sha256() if users else None)


@dataclass(frozen=True, kw_only=True)
class Side:
    """The tools and the database of the agent or of the user."""

    toolkit: type[Toolkit]
    schemas: Callable[[], Sequence[ToolSchema]]
    database: Callable[[], SharedDatabase]
    """Returns the same database at every call."""


class Tau2Domain(Domain):
    """A domain in τ²-bench's format; subclasses define ``name``, ``folder`` and the two sides."""

    folder: ClassVar[str]
    """The domain's directory under ``domains``."""
    agent_side: ClassVar[Side]
    user_side: ClassVar[Side | None] = None
    environment_type: ClassVar[type[Tau2Environment]] = Tau2Environment
    wording: TaskWording = "plain"
    """How generated tasks are worded, as ``tasks.wording`` says."""
    varied_release: ClassVar[str] = "varied wording"
    """Names the varied texts of generated tasks; it changes when they do."""

    def __init__(self, data_dir: Path | None = None) -> None:
        self.source = find_source(self.folder, data_dir)

    @override
    def configured(self, config: GRPOConfig) -> "Tau2Domain":
        return self.worded(config.tasks.wording)

    def worded(self, wording: TaskWording) -> Self:
        """The domain whose generated tasks have this wording; its own tasks stay as they are."""
        if wording == self.wording:
            return self
        domain = copy(self)
        domain.wording = wording
        vars(domain).pop("_parsed", None)  # it has tasks in the other wording
        return domain

    @property
    def database(self) -> SharedDatabase:
        """The agent's database, parsed once per process."""
        return self.agent_side.database()

    @property
    def agent_tools(self) -> Sequence[ToolSchema]:
        """The schemas of the agent's own tools."""
        return self.agent_side.schemas()

    @property
    @override
    def user_tools(self) -> Sequence[ToolSchema]:
        return self.user_side.schemas() if self.user_side else ()

    @override
    def tools(self, *, solo: bool = False) -> Sequence[ToolSchema]:
        extra = (*self.user_tools, DONE_TOOL) if solo else ()
        return (*self.agent_tools, *extra)

    @override
    def policy_text(self, *, solo: bool = False) -> str:
        return self.read("policy")

    @property
    @override
    def release(self) -> str:
        digest = hashlib.sha256(read_file(self.source.directory, "tasks")).hexdigest()
        return f"{self.source.label} {self.folder} tasks sha256:{digest[:12]}"

    @property
    @override
    def release_with_generated(self) -> str:
        wording = "" if self.wording == "plain" else f" in {self.varied_release}"
        return f"{self.release}, generated tasks of release {GENERATOR_RELEASE}{wording}"

    @override
    def release_of(self, task: Task) -> str:
        is_generated = self.can_generate and _parse_generated_id(task.id, self) is not None
        return self.release_with_generated if is_generated else self.release

    @cached_property
    def _raw_tasks(self) -> dict[str, dict[str, Any]]:
        tasks = json.loads(read_file(self.source.directory, "tasks"))
        return {task["id"]: task for task in tasks}

    @cached_property
    def _parsed(self) -> dict[str, Task]:
        return {}

    @property
    @override
    def splits(self) -> Mapping[str, Sequence[str]]:
        return self._splits

    @cached_property
    def _splits(self) -> dict[str, list[str]]:
        try:
            return json.loads(read_file(self.source.directory, "split_tasks"))
        except FileNotFoundError:
            return {"base": list(self._raw_tasks)}

    @override
    def tasks(self, split: str) -> Sequence[Task]:
        if split not in self.splits:
            known = ", ".join(sorted(self.splits))
            raise ConfigError(f"domain {self.name!r} has no split {split!r}; known: {known}")
        return [self.task(task_id) for task_id in self.splits[split]]

    @override
    def has_task(self, task_id: str) -> bool:
        return task_id in self._raw_tasks or (
            self.can_generate and _parse_generated_id(task_id, self) is not None
        )

    @override
    def task(self, task_id: str) -> Task:
        if task_id not in self._parsed:
            self._parsed[task_id] = self._find(task_id)
        return self._parsed[task_id]

    def _find(self, task_id: str) -> Task:
        generated = _parse_generated_id(task_id, self) if self.can_generate else None
        if generated:
            level = generated["difficulty"]
            return self.generate(
                seed=int(generated["seed"]),
                count=int(generated["index"]) + 1,
                split=generated["split"],
                difficulty=None if level == "mix" else float(level),
            )[-1]
        if task_id not in self._raw_tasks:
            raise TaskDataError(f"domain {self.name!r} has no task {task_id!r} ({self.release})")
        try:
            return Task.model_validate(self._raw_tasks[task_id] | {"domain": self.name})
        except ValidationError as error:
            raise TaskDataError(
                f"task {task_id!r} of {self.release}: {first_problem(error)}"
            ) from error

    @override
    def environment(self, task: Task, *, solo: bool = False) -> Tau2Environment:
        initial = task.initial_state
        data = initial.initialization_data if initial else None
        agent = self.database
        if data and data.agent_data:
            agent = agent.updated(self.agent_data(data.agent_data))
        environment = self.new_environment(agent, data.user_data if data else None, solo=solo)
        environment.start(task)
        return environment

    def new_environment(
        self, database: SharedDatabase, user_data: dict[str, Any] | None, *, solo: bool
    ) -> Tau2Environment:
        """An environment over the agent's ``database``, before the task's initial actions."""
        user_tools = None
        if side := self.user_side:
            user_database = side.database().updated(user_data) if user_data else side.database()
            user_tools = side.toolkit(EpisodeDatabase(user_database))
        tools = self.agent_side.toolkit(EpisodeDatabase(database))
        return self.environment_type(tools, user_tools, solo=solo)

    def task_maker(self, split: str) -> TaskMaker:
        """The function that draws generated tasks of ``split``."""
        raise ConfigError(f"domain {self.name!r} has no task generator")

    def varied_task_maker(self, split: str) -> TaskMaker | None:
        """As ``task_maker``, with the same draws and varied texts; None if it has one wording."""
        del split
        return None

    @override
    def generate(
        self, *, seed: int, count: int, split: str = "train", difficulty: float | None = None
    ) -> list[Task]:
        make = self.task_maker(split)
        reword = self.varied_task_maker(split) if self.wording == "varied" else None

        def make_valid(rng: Random, level: float) -> Task | None:
            task = make(rng, level)
            if task is None or not allows_skills(task.skills, split):
                return task  # it is drawn again, valid or not
            return task if self.is_valid(task) else None

        tasks = draw_tasks(
            Rewording(make_valid, reword) if reword else make_valid,
            name=f"{self.folder}-gen",
            seed=seed,
            count=count,
            split=split,
            difficulty=difficulty,
        )
        return [task.model_copy(update={"domain": self.name}) for task in tasks]

    def is_valid(self, task: Task) -> bool:
        """Whether the gold actions run without error and solve a task that doing nothing does not.

        The gold actions of a refusal task must leave the database unchanged.
        """
        criteria = task.evaluation_criteria
        assert criteria is not None
        environment = self.environment(task)
        assertions = criteria.env_assertions or ()
        solved_by_nothing = RewardType.ACTION not in criteria.reward_basis and all(
            map(environment.holds, assertions)
        )
        if any(environment.call(action.call).error for action in task.gold_actions):
            return False
        if RewardType.DB in criteria.reward_basis:
            return task.is_refusal == (not environment.state().agent)
        return not solved_by_nothing and all(map(environment.holds, assertions))

    def agent_data(self, data: dict[str, Any]) -> dict[str, Any]:
        """A task's initial agent data, in the layout of the database."""
        return data

    def read(self, stem: str) -> str:
        """A policy text of the source, without the newline at the end that some releases have."""
        return read_file(self.source.directory, stem).decode().rstrip("\n")


GENERATED_SPLIT_SIZES = {"train": 74, "test": 40}
"""Tasks of each split of a ``GeneratedDomain``; ids of test tasks follow those of train tasks."""


class GeneratedDomain(Tau2Domain):
    """A domain whose own tasks are drawn by its generator with a fixed seed.

    ``policy.md`` is beside the class that defines ``folder``, unless ``policy_text`` is overridden.
    """

    can_generate = True
    task_seed: ClassVar[int]
    """Seed of the domain's own tasks; a different seed would define a different benchmark."""

    def __init__(self, data_dir: Path | None = None) -> None:
        del data_dir  # a τ²-bench checkout has no files of this domain
        owner = next(base for base in type(self).__mro__ if "folder" in vars(base))
        is_built_in = owner.__module__.startswith("grpo_cl.")
        label = f"grpo-cl {TASKS_VERSION}" if is_built_in else "own"
        # A class of a notebook has no file.
        file = getattr(sys.modules.get(owner.__module__), "__file__", None) or ""
        self.source = Source(Path(file).parent, label)

    @property
    @override
    def release(self) -> str:
        digest = hashlib.sha256(to_json(self._raw_tasks).encode()).hexdigest()
        return f"{self.source.label} {self.name} tasks sha256:{digest[:12]}"

    @cached_property
    @override
    def _raw_tasks(self) -> dict[str, dict[str, Any]]:
        tasks = [
            task
            for split, count in GENERATED_SPLIT_SIZES.items()
            for task in self.worded("plain").generate(seed=self.task_seed, count=count, split=split)
        ]
        return {
            task_id: task.model_dump(mode="json") | {"id": task_id}
            for task_id, task in zip(self._splits["base"], tasks, strict=True)
        }

    @cached_property
    @override
    def _splits(self) -> dict[str, list[str]]:
        num_train, num_test = GENERATED_SPLIT_SIZES.values()
        base = [f"{self.name}-{index}" for index in range(num_train + num_test)]
        return {"train": base[:num_train], "test": base[num_train:], "base": base}


def _parse_generated_id(task_id: str, domain: Tau2Domain) -> re.Match[str] | None:
    difficulty = r"(?P<difficulty>mix|[\d.e-]+)"
    pattern = rf"{domain.folder}-gen-(?P<split>\w+)-(?P<seed>-?\d+)-{difficulty}-(?P<index>\d+)"
    return re.fullmatch(pattern, task_id)
