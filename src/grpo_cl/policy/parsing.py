"""Reads tool calls out of text a model wrote: never raises, in time linear in the text.

What is not a proper call is left where it stands, as text. A call is bounded in length and depth;
its JSON has no key twice, no number that JSON cannot carry back, and no half of a character.
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from pydantic import JsonValue

from grpo_cl.types import ToolCall

MOST_CALLS = 32
"""Places of one reply that are looked at; what follows is text."""
LONGEST_CALL = 32_768
"""Characters."""
DEEPEST_CALL = 32
LONGEST_NUMBER = 18
"""Digits of an integer: all of them fit in 64 bits."""

THOUGHT, END_OF_THOUGHT = "<think>", "</think>"

_NAME = re.compile(r"[\w.-]{1,64}")
_LINE_OBJECT = re.compile(r"^[ \t]*(?=[{\[])", re.MULTILINE)
_NEXT_OBJECT = re.compile(r"[;,\s]*(?=[{\[])")
_FENCES = ("```json", "```tool_call", "```")


class Parsed(NamedTuple):
    """A reply taken apart."""

    content: str
    """The text around the calls, stripped; empty if there is none."""
    calls: tuple[ToolCall, ...]


class Keys(NamedTuple):
    """The names under which a call carries its parts, most usual first."""

    name: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments",)
    needs_arguments: bool = False
    """Whether an object without arguments is no call."""


def spoken(text: str, *, thinking: bool) -> str:
    """What is said after the thinking; nothing if a thought was never closed.

    ``thinking`` is true where the prompt has already opened the thought.
    """
    if thinking or text.lstrip().startswith(THOUGHT):
        return text.partition(END_OF_THOUGHT)[2]
    return text


def encodable(text: str) -> str:
    """The text with every half of a character replaced by a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")


def as_parsed(around: Sequence[str], calls: Sequence[ToolCall]) -> Parsed:
    """The pieces of text ``around`` calls, joined, and the calls."""
    return Parsed(encodable("".join(around)).strip(), tuple(calls))


def read_tagged(text: str, opening: str, closing: str, keys: Keys) -> Parsed:
    """Calls that stand between tags; the last closing tag may be missing."""
    around: list[str] = []
    calls: list[ToolCall] = []
    at = 0
    for _ in range(MOST_CALLS):
        start = text.find(opening, at)
        if start < 0:
            break
        closed = text.find(closing, start)
        end = len(text) if closed < 0 else closed
        start = text.rfind(opening, start, end)
        body = text[start + len(opening) : end]
        end += len(closing)
        call = read_object(body, keys)
        around.append(text[at : end if call is None else start])
        calls += () if call is None else (call,)
        at = end
    return as_parsed([*around, text[at:]], calls)


def read_after(text: str, mark: str, keys: Keys) -> Parsed:
    """Calls written as one JSON list, or one object, after the first ``mark``."""
    before, found, rest = text.partition(mark)
    start = len(rest) - len(rest.lstrip())
    at_start = _calls_at(rest, start, keys) if found else None
    if at_start is None:
        return as_parsed([text], [])
    return as_parsed([before, rest[at_start.end :]], at_start.calls)


def read_lines(text: str, keys: Keys) -> Parsed:
    """Calls written as JSON that begins a line, in a fenced block or not."""
    around: list[str] = []
    calls: list[ToolCall] = []
    at = searched = 0
    for _ in range(MOST_CALLS):
        follows = _NEXT_OBJECT.match(text, at) if calls and searched == at else None
        match = follows or _LINE_OBJECT.search(text, searched)
        if match is None:
            break
        found = _calls_at(text, match.end(), keys)
        if found is None:
            searched = match.end() + 1
            continue
        around.append(_before_fence(text[at : match.start()]))
        calls += found.calls
        at = searched = _after_fence(text, found.end)
    return as_parsed([*around, text[at:]], calls)


def read_object(text: str, keys: Keys) -> ToolCall | None:
    """The call that is all of ``text``."""
    if len(text) > LONGEST_CALL:
        return None
    body = text.strip()
    decoded = _decode(body, 0)
    if decoded is None or decoded.end != len(body):
        return None
    return _as_call(decoded.value, keys)


class _Decoded(NamedTuple):
    value: Any
    end: int


class _Found(NamedTuple):
    calls: list[ToolCall]
    end: int


def _calls_at(text: str, start: int, keys: Keys) -> _Found | None:
    decoded = _decode(text, start)
    if decoded is None:
        return None
    items = decoded.value if isinstance(decoded.value, list) else [decoded.value]
    calls = [call for item in items if (call := _as_call(item, keys)) is not None]
    if not calls or len(calls) != len(items) or len(calls) > MOST_CALLS:
        return None
    return _Found(calls, decoded.end)


def _as_call(value: Any, keys: Keys) -> ToolCall | None:
    if not isinstance(value, dict):
        return None
    name = next((value[key] for key in keys.name if key in value), None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return None
    if keys.needs_arguments and not any(key in value for key in keys.arguments):
        return None
    arguments = next((value[key] for key in keys.arguments if key in value), None)
    if isinstance(arguments, str):
        decoded = _decode(arguments, 0)
        arguments = decoded.value if decoded and decoded.end == len(arguments) else arguments
    if arguments is not None and not isinstance(arguments, dict):
        return None
    written = value.get("id")
    identity = written if isinstance(written, str) and len(written) <= 64 else ""
    return ToolCall(id=identity, name=name, arguments=arguments or {})


def _decode(text: str, start: int) -> _Decoded | None:
    try:
        value, length = _STRICT.raw_decode(text[start : start + LONGEST_CALL])
        if _is_too_deep(value):
            return None
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return _Decoded(value, start + length)


def _is_too_deep(value: JsonValue) -> bool:
    level: list[JsonValue] = [value]
    for _ in range(DEEPEST_CALL):
        inner: list[JsonValue] = []
        for item in level:
            if isinstance(item, dict):
                inner += item.values()
            elif isinstance(item, list):
                inner += item
        if not inner:
            return False
        level = inner
    return True


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return value


def _integer(digits: str) -> int:
    if len(digits.removeprefix("-")) > LONGEST_NUMBER:
        raise ValueError(f"an integer of {len(digits)} digits; at most {LONGEST_NUMBER} are read")
    return int(digits)


def _number(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:20]} is no finite number")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _before_fence(text: str) -> str:
    stripped = text.rstrip()
    for fence in _FENCES:
        if stripped.endswith(fence):
            return stripped.removesuffix(fence)
    return text


def _after_fence(text: str, at: int) -> int:
    rest = at
    while text[rest : rest + 1].isspace():
        rest += 1
    return rest + 3 if text.startswith("```", rest) else at


_STRICT = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_integer,
    parse_float=_number,
    parse_constant=_no_constant,
)
