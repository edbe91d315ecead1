"""Parses tool calls in generated text; never raises, and takes time linear in the text.

Anything that is not a valid call stays in the content. A call is bounded in length and depth; its
JSON has no duplicate key, no number that JSON cannot represent, and no lone surrogate.
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from pydantic import JsonValue

from grpo_cl.types import ToolCall

MAX_CALLS = 32
"""Candidate positions of one reply that are tried; the rest is content."""
MAX_CALL_LENGTH = 32_768
"""Characters."""
MAX_DEPTH = 32
MAX_DIGITS = 18
"""Of an integer; every such integer fits in 64 bits."""

THINK_START, THINK_END = "<think>", "</think>"

_NAME = re.compile(r"[\w.-]{1,64}")
_LINE_OBJECT = re.compile(r"^[ \t]*(?=[{\[])", re.MULTILINE)
_NEXT_OBJECT = re.compile(r"[;,\s]*(?=[{\[])")
_FENCES = ("```json", "```tool_call", "```")


class ParsedReply(NamedTuple):
    """The content and the tool calls of a reply."""

    content: str
    """The text outside the calls, stripped; empty if there is none."""
    calls: tuple[ToolCall, ...]


class CallKeys(NamedTuple):
    """The JSON keys of a call's name and arguments, most usual first."""

    name: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments",)
    needs_arguments: bool = False
    """Whether an object without arguments is not a call."""


def strip_reasoning(text: str, *, is_open: bool) -> str:
    """The text after the reasoning block; empty if the block is never closed.

    ``is_open`` is true where the prompt already ends with the opening tag.
    """
    if is_open or text.lstrip().startswith(THINK_START):
        return text.partition(THINK_END)[2]
    return text


def replace_surrogates(text: str) -> str:
    """The text with every lone surrogate replaced by a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")


def parsed_reply(outside: Sequence[str], calls: Sequence[ToolCall]) -> ParsedReply:
    """The joined text ``outside`` the calls, and the calls."""
    return ParsedReply(replace_surrogates("".join(outside)).strip(), tuple(calls))


def parse_tagged(text: str, opening: str, closing: str, keys: CallKeys) -> ParsedReply:
    """Calls between tags; the last closing tag may be missing."""
    outside: list[str] = []
    calls: list[ToolCall] = []
    at = 0
    for _ in range(MAX_CALLS):
        start = text.find(opening, at)
        if start < 0:
            break
        closed = text.find(closing, start)
        end = len(text) if closed < 0 else closed
        start = text.rfind(opening, start, end)
        body = text[start + len(opening) : end]
        end += len(closing)
        call = parse_call(body, keys)
        outside.append(text[at : end if call is None else start])
        calls += () if call is None else (call,)
        at = end
    return parsed_reply([*outside, text[at:]], calls)


def parse_after_marker(text: str, marker: str, keys: CallKeys) -> ParsedReply:
    """Calls written as one JSON list, or one object, after the first ``marker``."""
    before, has_marker, rest = text.partition(marker)
    start = len(rest) - len(rest.lstrip())
    at_start = _calls_at(rest, start, keys) if has_marker else None
    if at_start is None:
        return parsed_reply([text], [])
    return parsed_reply([before, rest[at_start.end :]], at_start.calls)


def parse_json_lines(text: str, keys: CallKeys) -> ParsedReply:
    """Calls written as JSON at the start of a line, in a fenced block or not."""
    outside: list[str] = []
    calls: list[ToolCall] = []
    at = searched = 0
    for _ in range(MAX_CALLS):
        follows = _NEXT_OBJECT.match(text, at) if calls and searched == at else None
        match = follows or _LINE_OBJECT.search(text, searched)
        if match is None:
            break
        parsed = _calls_at(text, match.end(), keys)
        if parsed is None:
            searched = match.end() + 1
            continue
        outside.append(_before_fence(text[at : match.start()]))
        calls += parsed.calls
        at = searched = _after_fence(text, parsed.end)
    return parsed_reply([*outside, text[at:]], calls)


def parse_call(text: str, keys: CallKeys) -> ToolCall | None:
    """The call that ``text`` consists of, or None."""
    if len(text) > MAX_CALL_LENGTH:
        return None
    body = text.strip()
    decoded = decode_json(body, 0)
    if decoded is None or decoded.end != len(body):
        return None
    return _as_call(decoded.value, keys)


class DecodedJson(NamedTuple):
    """A JSON value and the position after it."""

    value: Any
    end: int


class _CallsAt(NamedTuple):
    calls: list[ToolCall]
    end: int


def _calls_at(text: str, start: int, keys: CallKeys) -> _CallsAt | None:
    decoded = decode_json(text, start)
    if decoded is None:
        return None
    items = decoded.value if isinstance(decoded.value, list) else [decoded.value]
    calls = [call for item in items if (call := _as_call(item, keys)) is not None]
    if not calls or len(calls) != len(items) or len(calls) > MAX_CALLS:
        return None
    return _CallsAt(calls, decoded.end)


def _as_call(value: Any, keys: CallKeys) -> ToolCall | None:
    if not isinstance(value, dict):
        return None
    name = next((value[key] for key in keys.name if key in value), None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return None
    if keys.needs_arguments and not any(key in value for key in keys.arguments):
        return None
    arguments = next((value[key] for key in keys.arguments if key in value), None)
    if isinstance(arguments, str):
        decoded = decode_json(arguments, 0)
        arguments = decoded.value if decoded and decoded.end == len(arguments) else arguments
    if arguments is not None and not isinstance(arguments, dict):
        return None
    call_id = value.get("id")
    call_id = call_id if isinstance(call_id, str) and len(call_id) <= 64 else ""
    return ToolCall(id=call_id, name=name, arguments=arguments or {})


def decode_json(text: str, start: int) -> DecodedJson | None:
    """The JSON value at ``start``, or None if it is malformed or exceeds a limit."""
    try:
        value, length = _STRICT_DECODER.raw_decode(text[start : start + MAX_CALL_LENGTH])
        if _is_too_deep(value):
            return None
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return DecodedJson(value, start + length)


def _is_too_deep(value: JsonValue) -> bool:
    level: list[JsonValue] = [value]
    for _ in range(MAX_DEPTH):
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


def _unique_keys(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("duplicate key in one object")
    return value


def _bounded_int(digits: str) -> int:
    if len(digits.removeprefix("-")) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits; at most {MAX_DIGITS} are accepted")
    return int(digits)


def _finite_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:20]} is not a finite number")
    return value


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


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


_STRICT_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_keys,
    parse_int=_bounded_int,
    parse_float=_finite_float,
    parse_constant=_reject_constant,
)
