"""Contextual bandits for testing algorithms: the agent sees a signal and chooses one option.

Each domain has its own signals and one correct option for all of them. A policy that ignores the
signal is therefore wrong in the next domain; a policy that depends on the signal is not.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from typing_extensions import override

from grpo_cl.envs.base import DONE, Domain, Environment, State, StateHash
from grpo_cl.envs.toolkit import function_schema
from grpo_cl.errors import ConfigError, TaskDataError, ToolError
from grpo_cl.types import (
    Action,
    EnvAssertion,
    EvaluationCriteria,
    RewardType,
    Task,
    ToolCall,
    ToolResult,
    ToolSchema,
    UserScenario,
)

CHOOSE = "choose"
DIRECTIONS = ("left", "right", "up", "down")
OPTIONS = ("stay", *DIRECTIONS)
"""The first option is never correct, so an untrained greedy policy scores zero."""
NUM_SIGNALS = 8
"""Signals per domain; training and test tasks have the same signals."""

_ID = re.compile(r"(train|test)(?:-\d+-\d+)?-(\d\d)")
_TICKET = re.compile(r"The signal is (\S+)\.")
_POLICY = (
    "The ticket names a signal. Call `choose` once with the option it asks for; there is no second "
    "try, and nobody says which option is right."
)


def signal_names() -> list[str]:
    """The signals of all domains, in a fixed order."""
    return [f"{option}-{n:02}" for option in DIRECTIONS for n in range(NUM_SIGNALS)]


def signal_of(task: Task) -> str:
    """The signal in the ticket of a task."""
    match = _TICKET.fullmatch(task.ticket or "")
    if match is None:
        raise TaskDataError(
            f"task {task.id!r} of domain {task.domain!r} has no signal; "
            "only tasks of the toy domains have one"
        )
    return match[1]


def ticket_in(texts: Iterable[str]) -> str:
    """The last ticket in ``texts``, the messages of a chat."""
    found = [match for text in texts for match in _TICKET.finditer(text)]
    if not found or found[-1][1] not in signal_names():
        raise TaskDataError(
            "the chat names no signal of the toy domains; a message must say, for example, "
            f"'The signal is {signal_names()[0]}.'"
        )
    return found[-1][0]


class ToyEnvironment(Environment):
    """One signal and the agent's choice; only the first choice counts."""

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
    """A domain whose signals all require the same option."""

    can_generate = True

    def __init__(self, option: str, data_dir: Path | None = None) -> None:
        del data_dir  # the toy domains have no files
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
        match = _ID.fullmatch(task_id)
        return match is not None and int(match[2]) < NUM_SIGNALS

    @override
    def task(self, task_id: str) -> Task:
        match = _ID.fullmatch(task_id)
        if match is None or not self.has_task(task_id):
            raise TaskDataError(
                f"domain {self.name!r} has no task {task_id!r}; ids are like train-00 and "
                f"test-{NUM_SIGNALS - 1}"
            )
        ticket = f"The signal is {self.option}-{match[2]}."
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
        """Tasks with random signals; all have the same difficulty."""
        del difficulty
        rng = Random(f"{self.name}/{split}/{seed}")
        numbers = [rng.randrange(NUM_SIGNALS) for _ in range(count)]
        return [
            self.task(f"{split}-{seed}-{index}-{number:02}") for index, number in enumerate(numbers)
        ]


def _schema(name: str, description: str, **properties: Any) -> ToolSchema:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return function_schema(name, description, parameters)


_OPTION = {"type": "string", "enum": list(OPTIONS), "description": "The option."}
_CHOOSE_TOOL = _schema(CHOOSE, "Answer the signal with an option.", option=_OPTION)
_DONE_TOOL = _schema(DONE, "End the work on the ticket.")

left, right, up, down = (partial(ToyDomain, option) for option in DIRECTIONS)
"""Factories of the domain for each option."""
