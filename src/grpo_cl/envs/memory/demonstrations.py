"""Demonstrations of the memory domain: one reply per chunk with its gold operations."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import Enum
from random import Random
from typing import NamedTuple

from grpo_cl.envs.base import STOP, StreamingEnvironment
from grpo_cl.envs.memory.store.tools import INSERT, SKIP, UPDATE
from grpo_cl.types import Message, Task, Termination, ToolCall, Trajectory, number_calls

MEMORY_ID = "memory_id"

_INSERTED = re.compile(r"memory (\d+) inserted")


class _ErrorKind(Enum):
    OMIT = "the operation is left out"
    DUPLICATE = "the update is inserted as a second entry"


class InjectedError(NamedTuple):
    """An error in one gold operation."""

    action_id: str
    kind: _ErrorKind


def draw_error(task: Task, rng: Random) -> InjectedError | None:
    """An error in a random gold action of ``task``; None if it has none."""
    if not task.gold_actions:
        return None
    action = rng.choice(task.gold_actions)
    kind = rng.choice(list(_ErrorKind)) if action.name == UPDATE else _ErrorKind.OMIT
    return InjectedError(action.action_id, kind)


class GoldReplay:
    """Plays the gold operations of a task, with one injected error or none.

    After an error the ids of later operations refer to the entries that exist.
    """

    def __init__(
        self, task: Task, environment: StreamingEnvironment, error: InjectedError | None
    ) -> None:
        self._task = task
        self._environment = environment
        self._error = error
        self._entry_ids: dict[int, int] = {}
        """Ids in this episode by the ids that the gold operations use."""
        self._num_calls = self._num_inserts = 0

    def play(self) -> Trajectory:
        """The episode: for each chunk an observation, a reply and the tool results."""
        gold: defaultdict[int, list[ToolCall]] = defaultdict(list)
        for action in self._task.gold_actions:
            gold[int(action.action_id.partition(".")[0])].append(action.call)
        messages: list[Message] = []
        chunk_id = 0
        while observation := self._environment.next_observation():
            chunk_id += 1
            messages.append(Message(role="user", content=observation))
            messages += self._reply(gold[chunk_id])
        messages.append(Message(role="user", content=STOP))
        return Trajectory(
            task=self._task, messages=tuple(messages), termination=Termination.USER_STOP
        )

    def _reply(self, gold: Sequence[ToolCall]) -> list[Message]:
        calls: list[tuple[ToolCall, int | None]] = []
        for gold_call in gold:
            gold_id = self._gold_entry_id(gold_call)
            call = self._translated(gold_call)
            if call is not None:
                calls.append((self._numbered(call), gold_id))
        calls = calls or [(self._numbered(ToolCall(name=SKIP)), None)]
        messages = [Message(role="assistant", tool_calls=tuple(call for call, _ in calls))]
        for call, gold_id in calls:
            result = self._environment.call(call)
            inserted = _INSERTED.fullmatch(result.content)
            if inserted and gold_id is not None:
                self._entry_ids[gold_id] = int(inserted[1])
            messages.append(result.message(call))
        return messages

    def _gold_entry_id(self, call: ToolCall) -> int | None:
        """The id that the gold operations use for the entry of a call."""
        if call.name == INSERT:
            self._num_inserts += 1
            return self._num_inserts
        return _memory_id(call.arguments)

    def _translated(self, call: ToolCall) -> ToolCall | None:
        """A gold call with the ids of this episode and its error; None if it is omitted."""
        error = self._error.kind if self._error and self._error.action_id == call.id else None
        if error is _ErrorKind.OMIT or call.name == INSERT:
            return None if error else call
        entry_id = self._entry_ids.get(_memory_id(call.arguments) or 0)
        if entry_id is not None and error is None:
            return call.model_copy(update={"arguments": {**call.arguments, MEMORY_ID: entry_id}})
        if call.name != UPDATE:
            return None
        arguments = {name: value for name, value in call.arguments.items() if name != MEMORY_ID}
        return ToolCall(name=INSERT, arguments=arguments)

    def _numbered(self, call: ToolCall) -> ToolCall:
        (numbered,) = number_calls([call], self._num_calls)
        self._num_calls += 1
        return numbered


def _memory_id(arguments: Mapping[str, object]) -> int | None:
    value = arguments.get(MEMORY_ID)
    return value if isinstance(value, int) else None
