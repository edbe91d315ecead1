"""Parsers of JSON replies, and the response schema of an LLM judge's verdicts."""

import json
from functools import partial
from typing import Any

from pydantic import TypeAdapter

from grpo_cl.llm.chat_session import ChatSession
from grpo_cl.llm.prompt import Prompt, ResponseSchema

VERDICT = "verdict"

VERDICT_SCHEMA = ResponseSchema(
    VERDICT,
    {
        "type": "object",
        "properties": {
            "verdicts": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "number": {"type": "integer"},
                        "reason": {"type": "string"},
                        "met": {"type": "boolean"},
                    },
                    "required": ["number", "reason", "met"],
                    "additionalProperties": False,
                },
            }
        },
        "required": ["verdicts"],
        "additionalProperties": False,
    },
)

_MET = TypeAdapter(bool)


def parse_json_object(text: str) -> dict[str, Any]:
    """The first JSON object in ``text``, which may be wrapped in prose; ``ValueError`` if none."""
    decoder = json.JSONDecoder()
    start = text.find("{")
    while start >= 0:
        try:
            value, _ = decoder.raw_decode(text, start)
        except ValueError:
            value = None
        except RecursionError:
            raise ValueError(f"JSON is nested too deeply in {text[:80]!r}") from None
        if isinstance(value, dict):
            return value
        start = text.find("{", start + 1)
    raise ValueError(f"no JSON object in {text[:80]!r}")


async def ask_verdicts(session: ChatSession, prompt: Prompt, count: int) -> tuple[bool, ...]:
    """The judge's verdict on each of ``count`` statements."""
    return await session.ask_parsed(prompt, partial(parse_verdicts, count=count), purpose=VERDICT)


def parse_verdicts(text: str, count: int) -> tuple[bool, ...]:
    """The verdict on each of ``count`` statements; ``ValueError`` if one is missing.

    Numbered entries may come in any order, and prose around the JSON is ignored.
    """
    entries = parse_json_object(text).get("verdicts")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"no list of verdicts in {text[:80]!r}")
    numbers = [entry.get("number", position) for position, entry in enumerate(entries, 1)]
    if not all(isinstance(number, int | float) for number in numbers):
        raise ValueError(f"a verdict's number is no number in {text[:80]!r}")
    numbered = dict(zip(numbers, entries, strict=True))
    if set(numbered) != set(range(1, count + 1)) or len(entries) != count:
        raise ValueError(f"{len(entries)} verdicts on {count} statements")
    return tuple(_MET.validate_python(numbered[n].get("met")) for n in range(1, count + 1))
