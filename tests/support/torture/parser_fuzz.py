"""Random and damaged replies for the parsers of tool calls: none raises, none exceeds a limit."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from grpo_cl.llm.json_replies import parse_json_object
from grpo_cl.policy.chat.compact import _parse_calls
from grpo_cl.policy.chat.dialects import DIALECTS
from grpo_cl.policy.chat.tool_call_parser import MAX_CALLS, ParsedReply, strip_reasoning
from grpo_cl.types import Message, ToolCall
from torture.cases import Bench, Case, Verdict, lost, survived

BATCH = 10_000
PIECES = (
    *("{", "}", "[", "]", '"', ":", ",", "\\", "\\u", "\\ud800", "\n", "\t", " ", "\0", "\ud800"),
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<|end|>", "```json", "```"),
    *("<think>", "</think>", "name", "arguments", "parameters", "tool", "get_user_details{", "id"),
    *("1e999", "NaN", "-Infinity", "9" * 400, "null", "true", "-0", "1.5", "é", "\U0001f600"),
    *("[" * 300, "{" * 300, '{"a":' * 60, "x" * 2000, '"name": "f"', '"arguments": {}'),
)
CALLS = (
    ToolCall(name="get_user_details", arguments={"user_id": "mia_li_3668"}),
    ToolCall(name="f", arguments={"a": [1, 2.5, None, True, {"b": "é"}], "c": {"d": {"e": "]}"}}}),
)


def fuzz_parsers(bench: Bench) -> Iterator[Case]:
    """Parse random and damaged replies in every dialect."""
    for number in range(bench.amount(80)):
        yield Case(str(number), _batch(bench, number), tried=BATCH)


def _batch(bench: Bench, number: int) -> Callable[[Path], Verdict]:
    def attempt(folder: Path) -> Verdict:
        del folder
        rng = bench.rng("parsers", number)
        parsers = [*(dialect.parse for dialect in DIALECTS.values()), _compact, _json_object]
        starts = [
            *(dialect.format_calls(CALLS) for dialect in DIALECTS.values()),
            'get_user_details{"user_id":" mia_li_3668"}',
        ]
        for at in range(BATCH):
            text = _reply(rng, starts)
            problem = _problem(parsers[at % len(parsers)], text)
            if problem:
                return lost(f"reply {at}: {problem}: {text[:200]!r}")
        return survived()

    return attempt


def _reply(rng: Random, starts: list[str]) -> str:
    """Pieces in any order, or valid calls with some characters replaced, added or removed."""
    if rng.random() < 0.3:
        return "".join(rng.choices(PIECES, k=rng.randrange(12)))
    text = rng.choice(starts)
    for _ in range(rng.randrange(5)):
        start = rng.randrange(len(text) + 1)
        end = min(len(text), start + rng.choice((0, 0, 1, 1, 2, 9)))
        text = text[:start] + rng.choice((*PIECES, "", "", text[start:end] * 40)) + text[end:]
    return text


def _compact(text: str) -> ParsedReply:
    return ParsedReply("", _parse_calls(text))


def _json_object(text: str) -> ParsedReply:
    try:
        parse_json_object(text)
    except ValueError:
        return ParsedReply("", ())  # what it says that it raises
    return ParsedReply("", ())


def _problem(parse: Callable[[str], ParsedReply], text: str) -> str | None:
    try:
        parsed = parse(strip_reasoning(text, is_open=False))
        message = Message(role="assistant", content=parsed.content, tool_calls=parsed.calls or None)
        json.loads(message.model_dump_json())
    except Exception as error:  # noqa: BLE001, any exception is what is looked for
        return f"{type(error).__name__}: {str(error)[:200]}"
    return f"{len(parsed.calls)} calls" if len(parsed.calls) > MAX_CALLS else None
