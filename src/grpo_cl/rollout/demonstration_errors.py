"""Errors injected into demonstrations.

A policy trained on correct demonstrations only has little variance in its rewards. One that has
seen errors makes them at the rate of its training data, and RL can then remove them.
"""

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from grpo_cl.types import ToolCall

TRANSFER_CALL = ToolCall(
    name="transfer_to_human_agents", arguments={"summary": "The request is beyond the agent."}
)
_WORD = re.compile(r"[\w#-]+")


class AnsweredCall(NamedTuple):
    """A tool call, its result, and whether it writes; a call that the tool refuses does not."""

    call: ToolCall
    content: str
    is_write: bool


def inject_error(answered: Sequence[AnsweredCall], rng: Random) -> list[ToolCall] | None:
    """The calls with one error of a random applicable kind; None if there is no write."""
    if not any(answer.is_write for answer in answered):
        return None
    for make_error in rng.sample(_ERRORS, len(_ERRORS)):
        calls = make_error(answered, rng)
        if calls is not None:
            return calls
    return None


def _calls(answered: Sequence[AnsweredCall]) -> list[ToolCall]:
    return [answer.call for answer in answered]


def _random_write(answered: Sequence[AnsweredCall], rng: Random) -> int:
    return rng.choice([index for index, answer in enumerate(answered) if answer.is_write])


def _stop_early(answered: Sequence[AnsweredCall], rng: Random) -> list[ToolCall] | None:
    """Stop before one of the writes."""
    return _calls(answered[: _random_write(answered, rng)])


def _transfer_early(answered: Sequence[AnsweredCall], rng: Random) -> list[ToolCall] | None:
    """Transfer to a human before one of the writes."""
    return [*_calls(answered[: _random_write(answered, rng)]), TRANSFER_CALL]


def _skip_write(answered: Sequence[AnsweredCall], rng: Random) -> list[ToolCall] | None:
    """Leave out one write and continue."""
    index = _random_write(answered, rng)
    rest = _calls(answered[index + 1 :])
    return [*_calls(answered[:index]), *rest] if rest else None


def _replace_value(answered: Sequence[AnsweredCall], rng: Random) -> list[ToolCall] | None:
    """Replace an argument of a write by a value of the same format from an earlier result."""
    index = _random_write(answered, rng)
    arguments = answered[index].call.arguments
    words = sorted({word for answer in answered[:index] for word in _WORD.findall(answer.content)})
    choices = [
        (name, other)
        for name, value in arguments.items()
        if isinstance(value, str)
        for other in words
        if other != value and _format(other) == _format(value)
    ]
    if not choices:
        return None
    name, other = rng.choice(choices)
    wrong = answered[index].call.model_copy(update={"arguments": {**arguments, name: other}})
    return [*_calls(answered[:index]), wrong, *_calls(answered[index + 1 :])]


def _format(word: str) -> str:
    """The format of a word: ``#W12`` and ``#W97`` have the same."""
    return re.sub(r"[a-z]+", "a", re.sub(r"[A-Z]", "A", re.sub(r"\d", "9", word)))


_ERRORS: tuple[Callable[[Sequence[AnsweredCall], Random], list[ToolCall] | None], ...] = (
    _stop_early,
    _transfer_early,
    _skip_write,
    _replace_value,
)
