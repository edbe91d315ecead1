"""Bandits for trying algorithms: a signal is shown, one option is chosen, the episode is over.

Each domain has its own signals, and they all ask for its own option: whatever a policy learns for
signals of any kind is wrong in the next domain, what it learns for each signal is not.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from typing_extensions import override

from grpo_cl.domains.base import DONE, Domain, Environment, State, StateHash, ToolSchema
from grpo_cl.errors import ConfigError, TaskDataError, ToolError
from grpo_cl.types import (
    Action,
    EnvAssertion,
    EvaluationCriteria,
    RewardType,
    Task,
    ToolCall,
    ToolResult,
    UserScenario,
)

CHOOSE = "choose"
DIRECTIONS = ("left", "right", "up", "down")
OPTIONS = ("stay", *DIRECTIONS)
"""The first is never right, so a policy that prefers nothing and takes the first scores zero."""
NUM_SIGNALS = 8
"""Of one domain; training and test tasks show the same ones."""

_ID = re.compile(r"(train|test)(?:-\d+-\d+)?-(\d\d)")
_TICKET = re.compile(r"The signal is (\S+)\.")
_POLICY = (
    "The ticket names a signal. Call `choose` once with the option it asks for; there is no second "
    "try, and nobody says which option is right."
)


def signal_names() -> list[str]:
    """The signals of all domains, always in the same order."""
    return [f"{option}-{n:02}" for option in DIRECTIONS for n in range(NUM_SIGNALS)]


def signal_of(task: Task) -> str:
    """The signal a task's ticket names."""
    found = _TICKET.fullmatch(task.ticket or "")
    if found is None:
        raise TaskDataError(
            f"task {task.id!r} of domain {task.domain!r} shows no signal; "
            "only tasks of the toy domains do"
        )
    return found[1]


class ToyEnvironment(Environment):
    """One signal and, after the first call, one choice."""

    def __init__(self, signal: str) -> None:
        self._signal = signal
        self._choice: str | None = None

    @override
    def call(self, call: ToolCall) -> ToolResult:
        error = self.perform(call)
        return ToolResult(content=f"Error: {error}", error=True) if error else _CHOSEN

    @override
    def perform(self, call: ToolCall) -> str | None:
        try:
            self._choose(call)
        except ToolError as error:
            return str(error)
        return None

    def _choose(self, call: ToolCall) -> None:
        option = call.arguments.get("option")
        if call.name != CHOOSE or call.requestor != "assistant":
            raise ToolError(f"Tool '{call.name}' not found.")
        if option not in OPTIONS or len(call.arguments) != 1:
            raise ToolError(f"option must be one of {', '.join(OPTIONS)}")
        if self._choice is not None:
            raise ToolError("an option was chosen already")
        self._choice = str(option)

    @override
    def mutates(self, call: ToolCall) -> bool:
        return call.name == CHOOSE

    @override
    def holds(self, assertion: EnvAssertion) -> bool:
        raise TaskDataError(f"the toy domains have no function {assertion.func_name!r}")

    @override
    def state(self) -> State:
        return State({("choices", self._signal): self._choice} if self._choice else {}, {})

    @override
    def state_hash(self) -> StateHash:
        text = json.dumps([self._signal, self._choice])
        return StateHash(hashlib.sha256(text.encode()).hexdigest(), None)


_CHOSEN = ToolResult(content="Chosen.")


class ToyDomain(Domain):
    """The signals that ask for one option."""

    can_generate = True

    def __init__(self, option: str, data_dir: Path | None = None) -> None:
        del data_dir  # there are no files
        self.option = option
        self.name = f"toy_{option}"
        self._splits = {
            split: [f"{split}-{n:02}" for n in range(NUM_SIGNALS)] for split in ("train", "test")
        }

    @property
    @override
    def release(self) -> str:
        return "toy 1"

    @property
    @override
    def splits(self) -> Mapping[str, Sequence[str]]:
        return {**self._splits, "base": [*self._splits["train"], *self._splits["test"]]}

    @override
    def tasks(self, split: str) -> Sequence[Task]:
        if split not in self.splits:
            known = ", ".join(self.splits)
            raise ConfigError(f"domain {self.name!r} has no split {split!r}; known: {known}")
        return [self.task(task_id) for task_id in self.splits[split]]

    @override
    def has_task(self, task_id: str) -> bool:
        found = _ID.fullmatch(task_id)
        return found is not None and int(found[2]) < NUM_SIGNALS

    @override
    def task(self, task_id: str) -> Task:
        found = _ID.fullmatch(task_id)
        if found is None or not self.has_task(task_id):
            raise TaskDataError(
                f"domain {self.name!r} has no task {task_id!r}; ids are like train-00 and "
                f"test-{NUM_SIGNALS - 1}"
            )
        ticket = f"The signal is {self.option}-{found[2]}."
        action = Action(action_id=CHOOSE, name=CHOOSE, arguments={"option": self.option})
        return Task(
            id=task_id,
            domain=self.name,
            user_scenario=UserScenario(instructions=ticket),
            ticket=ticket,
            evaluation_criteria=EvaluationCriteria(
                actions=(action,), reward_basis=(RewardType.DB,)
            ),
        )

    @override
    def environment(self, task: Task, *, solo: bool = False) -> ToyEnvironment:
        del solo
        return ToyEnvironment(signal_of(task))

    @override
    def policy_text(self, *, solo: bool = False) -> str:
        del solo
        return _POLICY

    @override
    def tools(self, *, solo: bool = False) -> Sequence[ToolSchema]:
        return (_CHOOSE_TOOL, _DONE_TOOL) if solo else (_CHOOSE_TOOL,)

    @property
    @override
    def user_tools(self) -> Sequence[ToolSchema]:
        return ()

    @override
    def generate(
        self, *, seed: int, count: int, split: str = "train", difficulty: float | None = None
    ) -> list[Task]:
        """Tasks with signals drawn at random; all are equally hard."""
        del difficulty
        rng = Random(f"{self.name}/{split}/{seed}")
        numbers = [rng.randrange(NUM_SIGNALS) for _ in range(count)]
        return [
            self.task(f"{split}-{seed}-{place}-{number:02}") for place, number in enumerate(numbers)
        ]


def _schema(name: str, description: str, **properties: Any) -> ToolSchema:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


_OPTION = {"type": "string", "enum": list(OPTIONS), "description": "The option."}
_CHOOSE_TOOL = _schema(CHOOSE, "Answer the signal with an option.", option=_OPTION)
_DONE_TOOL = _schema(DONE, "End the work on the ticket.")

left, right, up, down = (partial(ToyDomain, option) for option in DIRECTIONS)
"""Each makes the domain whose signals ask for that option."""
