"""Demonstrations for SFT: the gold actions of a task, played without a user.

A demonstration has the writes of the gold actions and the reads before them that an agent needs. A
domain may add calls (``Domain.demonstration_calls``) or bring its own demonstrator.
"""

import re
from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

from pydantic import JsonValue

from grpo_cl.envs.base import DONE, STOP, Domain
from grpo_cl.rewards import RewardOracle
from grpo_cl.rollout.demonstration_errors import AnsweredCall, inject_error
from grpo_cl.rollout.episode import Scene
from grpo_cl.types import Message, Task, Termination, ToolCall, Trajectory, number_calls
from grpo_cl.users.scripted.ticket import ticket

_VALUE = re.compile(r"[\w#.@-]+")
_MIN_VALUE_LENGTH = 3
"""Shorter values occur in unrelated texts by chance."""


class Example(NamedTuple):
    """A conversation to imitate."""

    scene: Scene
    messages: tuple[Message, ...]


def demonstrate(
    domain: Domain, task: Task, *, error_rng: Random | None = None
) -> Trajectory | None:
    """An episode that solves ``task``; None if the gold actions do not solve it.

    With ``error_rng`` one error drawn from it is injected, if the task has a write.
    """
    if domain.demonstrator is not None:
        return domain.demonstrator(task, error_rng=error_rng)
    candidates = _run(domain, task, domain.demonstration_calls(task))
    calls = _run(domain, task, _without_unneeded_reads(candidates, ticket(task)))
    trajectory = _trajectory(task, calls)
    if RewardOracle({domain.name: domain}).score(trajectory).value != 1.0:
        return None
    with_error = inject_error(calls, error_rng) if error_rng else None
    return trajectory if with_error is None else _trajectory(task, _run(domain, task, with_error))


def _run(domain: Domain, task: Task, calls: Sequence[ToolCall]) -> list[AnsweredCall]:
    environment = domain.environment(task, solo=True)
    answered: list[AnsweredCall] = []
    for call in number_calls(calls, 0):
        result = environment.call(call)
        is_write = environment.mutates(call) and not result.error
        answered.append(AnsweredCall(call, result.content, is_write))
    return answered


def _without_unneeded_reads(calls: Sequence[AnsweredCall], ticket_text: str) -> list[ToolCall]:
    """The writes, and the reads that an agent needs before them.

    A read is kept if the ticket names the record, if a later write has all of its arguments, or if
    a kept call uses a value that it returns and the ticket lacks. Which reads are kept must not
    depend on their results: the agent does not know them when it decides to read.
    """
    ticket_words = _words(ticket_text)
    is_kept = [
        call.is_write or not _returns_record(call) or _is_named(calls, index, ticket_words)
        for index, call in enumerate(calls)
    ]
    for later in reversed(range(len(calls))):
        if not is_kept[later]:
            continue
        needed = set(_values(calls[later].call.arguments)) - ticket_words
        for earlier in range(later):
            returned = _words(calls[earlier].content)
            if needed & returned:
                is_kept[earlier] = True
                needed -= returned
    return [call.call for call, kept in zip(calls, is_kept, strict=True) if kept]


def _is_named(calls: Sequence[AnsweredCall], index: int, ticket_words: set[str]) -> bool:
    """Whether the arguments of a read are in the ticket, or among those of a later write."""
    names = set(_values(calls[index].call.arguments))
    writes = (set(_values(call.call.arguments)) for call in calls[index:] if call.is_write)
    return names <= ticket_words or any(names <= values for values in writes)


def _returns_record(answered: AnsweredCall) -> bool:
    """Whether the result is a record to take values from; status checks are always kept."""
    return answered.content.startswith(("{", "[")) or answered.call.name.startswith("find_")


def _values(value: JsonValue) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (word for item in value.values() for word in _values(item))
    elif isinstance(value, list):
        yield from (word for item in value for word in _values(item))
    else:
        # Short digits are kept: a small number in a write is computed from some record with it.
        words = _words(str(value))
        yield from (word for word in words if len(word) >= _MIN_VALUE_LENGTH or word.isdigit())


def _words(text: str) -> set[str]:
    return {word.rstrip(".") for word in _VALUE.findall(text)}


def _trajectory(task: Task, calls: Sequence[AnsweredCall]) -> Trajectory:
    messages: list[Message] = []
    for answered in calls:
        messages.append(Message(role="assistant", tool_calls=(answered.call,)))
        messages.append(Message(role="tool", id=answered.call.id, content=answered.content))
    messages.append(Message(role="assistant", content=STOP))
    return Trajectory(
        task=task, messages=tuple(messages), termination=Termination.AGENT_STOP, solo=True
    )


def agent_turns(trajectory: Trajectory) -> tuple[Message, ...]:
    """The conversation as the agent writes it; a solo agent ends it with a call of ``done``."""
    if not trajectory.solo:
        return trajectory.messages[:-1]
    done = Message(role="assistant", tool_calls=(ToolCall(id=DONE, name=DONE),))
    return (*trajectory.messages[:-1], done)
