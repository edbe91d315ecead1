"""Solved episodes of a narrated domain: the gold actions of each chunk in one reply."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import Enum
from random import Random
from typing import NamedTuple

from grpo_cl.domains.base import Domain
from grpo_cl.rewards import RewardOracle
from grpo_cl.types import Message, Task, Termination, ToolCall, Trajectory
from grpo_cl.users.base import STOP

INSERT, UPDATE, ID = "memory_insert", "memory_update", "memory_id"
SKIP = ToolCall(name="skip")
"""What an attentive agent says to a chunk that changes nothing."""

_INSERTED = re.compile(r"memory (\d+) inserted")


class _Slip(Enum):
    LEAVE_OUT = "something that is told is passed over"
    PUT_BESIDE = "what has changed is put beside what it changes"


class _Mistake(NamedTuple):
    action_id: str
    slip: _Slip


def demonstrate_chunks(domain: Domain, task: Task, *, careless: Random | None) -> Trajectory | None:
    """An episode that solves ``task``; None where the gold actions do not.

    With ``careless`` one reply has a mistake, drawn from there, if there is anything to spoil.
    """
    trajectory = _Writer(domain, task, None).play()
    if RewardOracle({domain.name: domain}).score(trajectory).value != 1.0:
        return None
    if careless is None or not task.gold_actions:
        return trajectory
    action = careless.choice(task.gold_actions)
    slip = careless.choice(list(_Slip)) if action.name == UPDATE else _Slip.LEAVE_OUT
    return _Writer(domain, task, _Mistake(action.action_id, slip)).play()


class _Writer:
    """Plays the gold actions; after a mistake it goes on with the memory that there is."""

    def __init__(self, domain: Domain, task: Task, mistake: _Mistake | None) -> None:
        self._task = task
        self._world = domain.environment(task)
        self._mistake = mistake
        self._ids: dict[int, int] = {}
        """The entries by the numbers that the gold actions give them."""
        self._num_calls = self._num_inserts = 0

    def play(self) -> Trajectory:
        """What is said and done: a chunk, a reply, its results, and so on."""
        gold: defaultdict[int, list[ToolCall]] = defaultdict(list)
        for action in self._task.gold_actions:
            gold[int(action.action_id.partition(".")[0])].append(action.call)
        messages: list[Message] = []
        chunk = 0
        while told := self._world.tell():
            chunk += 1
            messages.append(Message(role="user", content=told))
            messages += self._reply(gold[chunk])
        messages.append(Message(role="user", content=STOP))
        return Trajectory(
            task=self._task, messages=tuple(messages), termination=Termination.USER_STOP
        )

    def _reply(self, gold: Sequence[ToolCall]) -> list[Message]:
        made: list[tuple[ToolCall, int | None]] = []
        for call in gold:
            entry = self._entry(call)
            own = self._own(call)
            if own is not None:
                made.append((self._numbered(own), entry))
        made = made or [(self._numbered(SKIP), None)]
        messages = [Message(role="assistant", tool_calls=tuple(call for call, _ in made))]
        for call, entry in made:
            result = self._world.call(call)
            inserted = _INSERTED.fullmatch(result.content)
            if inserted and entry is not None:
                self._ids[entry] = int(inserted[1])
            messages.append(result.message(call))
        return messages

    def _entry(self, call: ToolCall) -> int | None:
        """The number that the gold actions give to the entry of a call."""
        if call.name == INSERT:
            self._num_inserts += 1
            return self._num_inserts
        return _id(call.arguments)

    def _own(self, call: ToolCall) -> ToolCall | None:
        """The call as it is made here; None where it is left out."""
        slip = self._mistake.slip if self._mistake and self._mistake.action_id == call.id else None
        if slip is _Slip.LEAVE_OUT or call.name == INSERT:
            return None if slip else call
        known = self._ids.get(_id(call.arguments) or 0)
        if known is not None and slip is None:
            return call.model_copy(update={"arguments": {**call.arguments, ID: known}})
        if call.name != UPDATE:
            return None
        rest = {name: value for name, value in call.arguments.items() if name != ID}
        return ToolCall(name=INSERT, arguments=rest)

    def _numbered(self, call: ToolCall) -> ToolCall:
        self._num_calls += 1
        return call.model_copy(update={"id": f"call_{self._num_calls - 1}"})


def _id(arguments: Mapping[str, object]) -> int | None:
    found = arguments.get(ID)
    return found if isinstance(found, int) else None
