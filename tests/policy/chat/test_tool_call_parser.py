import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_cl.policy.chat.dialects import DIALECTS
from grpo_cl.policy.chat.tool_call_parser import (
    MAX_CALL_LENGTH,
    MAX_CALLS,
    MAX_DEPTH,
    ParsedReply,
    strip_reasoning,
)
from grpo_cl.types import Message, ToolCall

NAMES = ("hermes", "llama", "mistral", "json")
FORMS = {
    "hermes": "<tool_call>\n%s\n</tool_call>",
    "llama": "%s",
    "mistral": "[TOOL_CALLS] [%s]",
    "json": "%s",
}
KEYS = {"llama": "parameters"}


def call_text(dialect: str, arguments: str, name: str = "f") -> str:
    key = KEYS.get(dialect, "arguments")
    return FORMS[dialect] % f'{{"name": "{name}", "{key}": {arguments}}}'


def parse(dialect: str, text: str) -> ParsedReply:
    return DIALECTS[dialect].parse(text)


def pairs(parsed: ParsedReply) -> list[Any]:
    return [(call.name, call.arguments) for call in parsed.calls]


@pytest.mark.parametrize("dialect", NAMES)
def test_call_is_parsed(dialect: str) -> None:
    parsed = parse(dialect, call_text(dialect, '{"a": [1, 2.5, null, true, {"b": "é"}]}'))
    assert parsed.content == ""
    assert pairs(parsed) == [("f", {"a": [1, 2.5, None, True, {"b": "é"}]})]


@pytest.mark.parametrize("dialect", NAMES)
@pytest.mark.parametrize(
    "arguments",
    [
        '{"a": 1',
        '{"a": 1, "a": 2}',
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": 1e999}',
        f'{{"a": {"9" * 5000}}}',
        '{"a": "\\ud800"}',
        '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"a": ' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}",
        f'{{"a": "{"x" * MAX_CALL_LENGTH}"}}',
        "[1]",
        "7",
        '"text"',
    ],
)
def test_malformed_call_is_content(dialect: str, arguments: str) -> None:
    text = call_text(dialect, arguments)
    assert parse(dialect, text) == ParsedReply(text, ())


@pytest.mark.parametrize("dialect", NAMES)
@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "a\\nb"])
def test_invalid_tool_name_is_not_a_call(dialect: str, name: str) -> None:
    text = call_text(dialect, "{}", name)
    assert parse(dialect, text) == ParsedReply(text, ())


@pytest.mark.parametrize("dialect", NAMES)
def test_arguments_can_be_a_json_string_or_null(dialect: str) -> None:
    assert pairs(parse(dialect, call_text(dialect, '"{\\"a\\": 1}"'))) == [("f", {"a": 1})]
    assert pairs(parse(dialect, call_text(dialect, "null"))) == [("f", {})]


def test_text_around_tagged_calls_is_content() -> None:
    call = call_text("hermes", "{}")
    parsed = parse("hermes", f"First.\n{call}\nThen.\n{call}\nLast.")
    assert parsed.content == "First.\n\nThen.\n\nLast."
    assert len(parsed.calls) == 2


def test_valid_call_beside_an_invalid_one_is_parsed() -> None:
    parsed = parse("hermes", "<tool_call>{oops}</tool_call>" + call_text("hermes", "{}"))
    assert parsed.content == "<tool_call>{oops}</tool_call>"
    assert pairs(parsed) == [("f", {})]


def test_last_tag_can_be_unclosed_and_a_repeated_one_is_content() -> None:
    assert pairs(parse("hermes", '<tool_call>\n{"name": "f", "arguments": {}}')) == [("f", {})]
    doubled = "<tool_call>" + call_text("hermes", "{}")
    assert parse("hermes", doubled).content == "<tool_call>"
    assert pairs(parse("hermes", doubled)) == [("f", {})]


def test_llama_separates_calls_and_text() -> None:
    call = '{"name": "f", "parameters": {}}'
    assert len(parse("llama", f"{call}; {call}").calls) == 2
    parsed = parse("llama", f"I look.<|python_tag|>{call}")
    assert (parsed.content, len(parsed.calls)) == ("I look.", 1)
    text = "I look.<|python_tag|>print(1)"
    assert parse("llama", text) == ParsedReply(text, ())
    assert parse("llama", 'As JSON: {"name": "f", "parameters": {}}').calls == ()


def test_mistral_parses_one_object_or_a_list_and_keeps_ids() -> None:
    parsed = parse("mistral", '[TOOL_CALLS]{"name": "f", "arguments": {}, "id": "abc"} Bye')
    assert parsed.content == "Bye"
    assert [call.id for call in parsed.calls] == ["abc"]
    mixed = '[TOOL_CALLS] [{"name": "f", "arguments": {}}, 3]'
    assert parse("mistral", mixed) == ParsedReply(mixed, ())


def test_json_can_be_in_a_fence_and_use_the_tool_key() -> None:
    text = 'I look.\n```json\n{"tool": "f", "arguments": {"a": 1}}\n```\nDone.'
    parsed = parse("json", text)
    assert pairs(parsed) == [("f", {"a": 1})]
    assert parsed.content == "I look.\n\nDone."


def test_json_that_is_not_a_call_is_content() -> None:
    for text in (
        '{"name": "Ann"}',
        "[1, 2]",
        '{"a": {"name": "f"}}',
        "```json\n{}\n```",
        "{",
        "[]",
    ):
        assert parse("json", text) == ParsedReply(text, ())


@pytest.mark.parametrize("dialect", NAMES)
def test_calls_beyond_the_limit_are_content(dialect: str) -> None:
    text = "\n".join([call_text(dialect, "{}")] * (MAX_CALLS + 5))
    assert len(parse(dialect, text).calls) <= MAX_CALLS


def test_reasoning_is_stripped() -> None:
    assert strip_reasoning("<think>a</think>b", is_open=False) == "b"
    assert strip_reasoning("a</think>b", is_open=True) == "b"
    assert strip_reasoning("a</think>b", is_open=False) == "a</think>b"
    assert strip_reasoning("<think>a", is_open=False) == ""


LONG = 65_536


@pytest.mark.parametrize("dialect", NAMES)
@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" * LONG,
        "<tool_call></tool_call>" * LONG,
        "<tool_call>{" * LONG + "</tool_call>",
        "[TOOL_CALLS]" * LONG,
        "[TOOL_CALLS]" + "[" * LONG,
        '{"name": ' * LONG,
        '{"a":\n' * LONG,
        "{\n" * LONG,
        "[\n" * LONG,
        "```json\n" * LONG,
        " " * LONG + "{",
        "\n" * LONG + "[",
        '{"name": "f", "arguments": {}, "parameters": {}};' * LONG,
        "<|python_tag|>" * LONG,
    ],
)
def test_parsing_takes_linear_time(dialect: str, text: str) -> None:
    best = float("inf")
    for _ in range(3):
        started = time.process_time()
        DIALECTS[dialect].parse(text)
        best = min(best, time.process_time() - started)
    assert best < 0.05


pieces = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "```json", "```"),
        *('{"name": "f", "arguments": {}}', '{"name": "f", "parameters": {"a": 1}}'),
        *("{", "}", "[", "]", '"', ":", ",", ";", "\n", " ", "\\ud83d", "\ud800", "NaN", "name"),
    ]
)


@settings(max_examples=100)
@given(dialect=st.sampled_from(NAMES), text=st.lists(pieces | st.text(max_size=4)).map("".join))
def test_parsing_never_raises_and_its_result_can_be_serialized(dialect: str, text: str) -> None:
    parsed = parse(dialect, text)
    message = Message(role="assistant", content=parsed.content, tool_calls=parsed.calls)
    message.model_dump_json().encode()
    assert parsed.content == parsed.content.strip()


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**17), 10**17)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.sampled_from(["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "```"])
    | st.text("\\\"<>/tool_call{}[]\n'", max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc"), inner, max_size=3),
    max_leaves=8,
)
calls = st.builds(
    ToolCall,
    name=st.from_regex(r"[a-z_]{1,12}", fullmatch=True),
    arguments=st.dictionaries(st.text('ab<é"', max_size=5), values, max_size=3),
)
words = st.text(st.characters(categories=["L", "N"], include_characters=" .,!?'\n"), min_size=1)
messages = st.builds(
    Message,
    role=st.just("assistant"),
    content=st.none() | words.map(str.strip).filter(bool),
    tool_calls=st.none() | st.lists(calls, min_size=1, max_size=3).map(tuple),
)


@settings(max_examples=100)
@given(dialect=st.sampled_from(NAMES), message=messages)
def test_formatted_message_parses_back_to_itself(dialect: str, message: Message) -> None:
    parsed = parse(dialect, DIALECTS[dialect].format_message(message))
    assert parsed.content == (message.content or "")
    assert pairs(parsed) == [(call.name, call.arguments) for call in message.tool_calls or ()]


@pytest.mark.parametrize("dialect", NAMES)
def test_tool_description_lists_every_tool_and_the_instructions(dialect: str) -> None:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {}}} for name in ("f", "g")
    ]
    text = DIALECTS[dialect].describe_tools(tools)
    assert [json.loads(line)["name"] for line in text.splitlines()[1:3]] == ["f", "g"]
    assert text.endswith(DIALECTS[dialect].instructions)
