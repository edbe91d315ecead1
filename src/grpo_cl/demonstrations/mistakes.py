"""What goes wrong in a demonstration by an agent that is not attentive.

A policy that has only seen faultless work leaves a reward little to choose between. One that has
seen mistakes makes them with the chance it saw them, and learns from rewards to leave them.
"""

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from grpo_cl.types import ToolCall

HAND_OVER = ToolCall(
    name="transfer_to_human_agents", arguments={"summary": "The request is beyond the agent."}
)
_WORD = re.compile(r"[\w#-]+")


class Answered(NamedTuple):
    """A call and what the tools said."""

    call: ToolCall
    content: str
    is_write: bool


def spoil(played: Sequence[Answered], rng: Random) -> list[ToolCall] | None:
    """The calls with one mistake of any kind that can be made here; None where nothing is done."""
    if not any(answer.is_write for answer in played):
        return None
    for mistake in rng.sample(_MISTAKES, len(_MISTAKES)):
        calls = mistake(played, rng)
        if calls is not None:
            return calls
    return None


def _calls(played: Sequence[Answered]) -> list[ToolCall]:
    return [answer.call for answer in played]


def _place_of_a_write(played: Sequence[Answered], rng: Random) -> int:
    return rng.choice([place for place, answer in enumerate(played) if answer.is_write])


def _stop_early(played: Sequence[Answered], rng: Random) -> list[ToolCall] | None:
    """Say that all is done before it is."""
    return _calls(played[: _place_of_a_write(played, rng)])


def _give_up(played: Sequence[Answered], rng: Random) -> list[ToolCall] | None:
    """Hand over to a person what could have been done."""
    return [*_calls(played[: _place_of_a_write(played, rng)]), HAND_OVER]


def _leave_out(played: Sequence[Answered], rng: Random) -> list[ToolCall] | None:
    """Go on as if one change had been made."""
    place = _place_of_a_write(played, rng)
    rest = _calls(played[place + 1 :])
    return [*_calls(played[:place]), *rest] if rest else None


def _confuse(played: Sequence[Answered], rng: Random) -> list[ToolCall] | None:
    """Take a value for another that looks like it and stands in an earlier answer."""
    place = _place_of_a_write(played, rng)
    given = played[place].call.arguments
    seen = sorted({word for answer in played[:place] for word in _WORD.findall(answer.content)})
    choices = [
        (name, other)
        for name, value in given.items()
        if isinstance(value, str)
        for other in seen
        if other != value and _shape(other) == _shape(value)
    ]
    if not choices:
        return None
    name, other = rng.choice(choices)
    wrong = played[place].call.model_copy(update={"arguments": {**given, name: other}})
    return [*_calls(played[:place]), wrong, *_calls(played[place + 1 :])]


def _shape(word: str) -> str:
    """Letters and digits without which ones: ``#W12`` and ``#W97`` have the same."""
    return re.sub(r"[a-z]+", "a", re.sub(r"[A-Z]", "A", re.sub(r"\d", "9", word)))


_MISTAKES: tuple[Callable[[Sequence[Answered], Random], list[ToolCall] | None], ...] = (
    _stop_early,
    _give_up,
    _leave_out,
    _confuse,
)
