"""What the τ²-bench domains share: task files, splits, policies and the episode's world."""

import gzip
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any, ClassVar, NamedTuple

from inspect_evals.tau2.utils import TAU2_DATA_DIR
from pydantic import ValidationError
from typing_extensions import override

from grpo_cl.domains.base import DONE, Domain, Environment, State, StateHash, ToolSchema
from grpo_cl.domains.generators.draft import TaskMaker, draw_tasks
from grpo_cl.domains.overlay import SharedDatabase
from grpo_cl.domains.toolkit import TOOL_FAILURES, Toolkit, function_schema, render
from grpo_cl.errors import ConfigError, TaskDataError, ToolError
from grpo_cl.types import (
    EnvAssertion,
    EnvFunctionCall,
    RewardType,
    Task,
    ToolCall,
    ToolResult,
)

DONE_TOOL = function_schema(
    DONE,
    "End the work on the ticket. Call this when it is solved, or when nothing more can be done.",
    {"type": "object", "properties": {}, "required": []},
)


class Tau2Environment(Environment):
    """The agent's toolkit, the user's if there is one, and the rules between them."""

    def __init__(self, tools: Toolkit, user_tools: Toolkit | None, *, solo: bool) -> None:
        self.tools = tools
        self.user_tools = user_tools
        self.solo = solo

    def sync(self) -> None:
        """Carry over what one side's change means for the other; most domains have nothing."""

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
            self._use(call)  # the reference does not synchronise between gold actions
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
        """Call any function of one side, as initial states and assertions do."""
        side = self.tools if function.env_type == "assistant" else self.user_tools
        where = f"{function.env_type} function {function.func_name!r}"
        if side is None:
            raise TaskDataError(f"{where}: this domain gives its users no tools")
        try:
            return side.run(function.func_name, function.arguments)
        except TOOL_FAILURES as error:
            raise TaskDataError(f"{where} with {function.arguments}: {error}") from error

    def start(self, task: Task) -> None:
        """Bring the world to where the task begins."""
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


class Source(NamedTuple):
    """Where the task, split and policy files of a domain are read from."""

    directory: Path
    label: str


class Tau2Domain(Domain):
    """A domain of τ²-bench over the carrier's tools and databases."""

    folder: ClassVar[str]
    """The domain's directory under ``domains``."""

    def __init__(self, data_dir: Path | None = None) -> None:
        self.source = find_source(self.folder, data_dir)

    # What each domain brings.

    @property
    def database(self) -> SharedDatabase:
        """The agent side's database, parsed once per process."""
        raise NotImplementedError

    def world(
        self, agent: SharedDatabase, user_data: dict[str, Any] | None, *, solo: bool
    ) -> Tau2Environment:
        """A fresh environment over ``agent`` before the task's initial actions."""
        raise NotImplementedError

    @property
    def agent_tools(self) -> Sequence[ToolSchema]:
        """The schemas of the agent's own tools."""
        raise NotImplementedError

    # What they share.

    @property
    @override
    def user_tools(self) -> Sequence[ToolSchema]:
        return ()

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
        digest = hashlib.sha256(_read(self.source.directory, "tasks")).hexdigest()
        return f"{self.source.label} {self.folder} tasks sha256:{digest[:12]}"

    @cached_property
    def _raw_tasks(self) -> dict[str, dict[str, Any]]:
        tasks = json.loads(_read(self.source.directory, "tasks"))
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
            return json.loads(_read(self.source.directory, "split_tasks"))
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
        return task_id in self._raw_tasks or (self.can_generate and bool(_generated(task_id, self)))

    @override
    def task(self, task_id: str) -> Task:
        if task_id not in self._parsed:
            self._parsed[task_id] = self._find(task_id)
        return self._parsed[task_id]

    def _find(self, task_id: str) -> Task:
        made = _generated(task_id, self) if self.can_generate else None
        if made:
            dial = None if made["dial"] == "mix" else float(made["dial"])
            seed, count = int(made["seed"]), int(made["index"]) + 1
            return self.generate(seed=seed, count=count, split=made["split"], difficulty=dial)[-1]
        if task_id not in self._raw_tasks:
            raise TaskDataError(f"domain {self.name!r} has no task {task_id!r} ({self.release})")
        try:
            return Task.model_validate(self._raw_tasks[task_id] | {"domain": self.name})
        except ValidationError as error:
            raise TaskDataError(f"task {task_id!r} of {self.release}: {error}") from error

    @override
    def environment(self, task: Task, *, solo: bool = False) -> Tau2Environment:
        initial = task.initial_state
        data = initial.initialization_data if initial else None
        agent = self.database
        if data and data.agent_data:
            agent = agent.updated(self.agent_data(data.agent_data))
        world = self.world(agent, data.user_data if data else None, solo=solo)
        world.start(task)
        return world

    def task_maker(self, split: str) -> TaskMaker:
        """What draws generated tasks, in a domain that can."""
        raise ConfigError(f"domain {self.name!r} has no task generator")

    @override
    def generate(
        self, *, seed: int, count: int, split: str = "train", difficulty: float | None = None
    ) -> list[Task]:
        make = self.task_maker(split)

        def make_sound(rng: Random, level: float) -> Task | None:
            task = make(rng, level)
            return task if task is not None and self.is_sound(task) else None

        tasks = draw_tasks(
            make_sound,
            name=f"{self.folder}-gen",
            seed=seed,
            count=count,
            split=split,
            difficulty=difficulty,
        )
        return [task.model_copy(update={"domain": self.name}) for task in tasks]

    def is_sound(self, task: Task) -> bool:
        """Whether the gold actions run without error and solve what doing nothing does not.

        A refusal is sound if its gold actions leave the world as it was.
        """
        criteria = task.evaluation_criteria
        assert criteria is not None
        world = self.environment(task)
        assertions = criteria.env_assertions or ()
        idle = RewardType.ACTION not in criteria.reward_basis and all(map(world.holds, assertions))
        if any(world.call(action.call).error for action in task.gold_actions):
            return False
        if RewardType.DB in criteria.reward_basis:
            return task.is_refusal == (not world.state().agent)
        return not idle and all(map(world.holds, assertions))

    def agent_data(self, data: dict[str, Any]) -> dict[str, Any]:
        """The initial changes of a task in the shape of the database."""
        return data

    def read(self, stem: str) -> str:
        """A policy text of the source, without the newline that some releases end it with."""
        return _read(self.source.directory, stem).decode().rstrip("\n")


def _generated(task_id: str, domain: Tau2Domain) -> re.Match[str] | None:
    pattern = (
        rf"{domain.folder}-gen-(?P<split>\w+)-(?P<seed>-?\d+)-(?P<dial>mix|[\d.e-]+)-(?P<index>\d+)"
    )
    return re.fullmatch(pattern, task_id)


def find_source(folder: str, data_dir: Path | None) -> Source:
    """The domain's files under ``data_dir`` if it has them, else the carrier's."""
    carrier = TAU2_DATA_DIR / "domains" / folder
    label = f"inspect-evals {version('inspect-evals')}"
    if data_dir is None:
        return Source(carrier, label)
    for root in (data_dir, data_dir / "data" / "tau2", data_dir / "tau2"):
        if (root / "domains").is_dir():
            mine = root / "domains" / folder
            return Source(mine, "tau2_data_dir") if mine.is_dir() else Source(carrier, label)
    raise ConfigError(
        f"tau2_data_dir {str(data_dir)!r} holds no 'domains' folder; "
        "give a τ²-bench checkout or its data/tau2 folder"
    )


def parse_database(folder: str, stem: str = "db") -> Any:
    """A JSON database of the carrier, without the temporary file its own loader leaves behind."""
    return json.loads(_read(TAU2_DATA_DIR / "domains" / folder, stem))


@cache  # every episode's prompt holds the policy
def _read(directory: Path, stem: str) -> bytes:
    for suffix in (".json", ".json.gz", ".md", ".txt"):
        path = directory / f"{stem}{suffix}"
        if path.exists():
            return (
                gzip.decompress(path.read_bytes()) if suffix.endswith("gz") else path.read_bytes()
            )
    raise FileNotFoundError(f"no {stem} file in {directory}")
