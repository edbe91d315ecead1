import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_cl.policy.dialects import DIALECTS
from grpo_cl.policy.parsing import DEEPEST_CALL, LONGEST_CALL, MOST_CALLS, Parsed, spoken
from grpo_cl.types import Message, ToolCall

NAMES = ("hermes", "llama", "mistral", "json")
FORMS = {
    "hermes": "<tool_call>\n%s\n</tool_call>",
    "llama": "%s",
    "mistral": "[TOOL_CALLS] [%s]",
    "json": "%s",
}
KEYS = {"llama": "parameters"}


def written(dialect: str, arguments: str, name: str = "f") -> str:
    key = KEYS.get(dialect, "arguments")
    return FORMS[dialect] % f'{{"name": "{name}", "{key}": {arguments}}}'


def read(dialect: str, text: str) -> Parsed:
    return DIALECTS[dialect].read(text)


def pairs(parsed: Parsed) -> list[Any]:
    return [(call.name, call.arguments) for call in parsed.calls]


@pytest.mark.parametrize("dialect", NAMES)
def test_a_call_is_read(dialect: str) -> None:
    parsed = read(dialect, written(dialect, '{"a": [1, 2.5, null, true, {"b": "é"}]}'))
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
        '{"a": ' + "[" * DEEPEST_CALL + "]" * DEEPEST_CALL + "}",
        f'{{"a": "{"x" * LONGEST_CALL}"}}',
        "[1]",
        "7",
        '"text"',
    ],
)
def test_a_malformed_call_is_left_as_text(dialect: str, arguments: str) -> None:
    text = written(dialect, arguments)
    assert read(dialect, text) == Parsed(text, ())


@pytest.mark.parametrize("dialect", NAMES)
@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "a\\nb"])
def test_a_name_that_is_no_tools_name_makes_no_call(dialect: str, name: str) -> None:
    text = written(dialect, "{}", name)
    assert read(dialect, text) == Parsed(text, ())


@pytest.mark.parametrize("dialect", NAMES)
def test_arguments_may_be_json_in_a_string_or_null(dialect: str) -> None:
    assert pairs(read(dialect, written(dialect, '"{\\"a\\": 1}"'))) == [("f", {"a": 1})]
    assert pairs(read(dialect, written(dialect, "null"))) == [("f", {})]


def test_text_around_tagged_calls_is_content() -> None:
    call = written("hermes", "{}")
    parsed = read("hermes", f"First.\n{call}\nThen.\n{call}\nLast.")
    assert parsed.content == "First.\n\nThen.\n\nLast."
    assert len(parsed.calls) == 2


def test_a_good_call_beside_a_bad_one_is_read() -> None:
    parsed = read("hermes", "<tool_call>{oops}</tool_call>" + written("hermes", "{}"))
    assert parsed.content == "<tool_call>{oops}</tool_call>"
    assert pairs(parsed) == [("f", {})]


def test_the_last_tag_may_be_left_open_and_a_doubled_one_is_passed_over() -> None:
    assert pairs(read("hermes", '<tool_call>\n{"name": "f", "arguments": {}}')) == [("f", {})]
    doubled = "<tool_call>" + written("hermes", "{}")
    assert read("hermes", doubled).content == "<tool_call>"
    assert pairs(read("hermes", doubled)) == [("f", {})]


def test_llama_separates_calls_and_text() -> None:
    call = '{"name": "f", "parameters": {}}'
    assert len(read("llama", f"{call}; {call}").calls) == 2
    parsed = read("llama", f"I look.<|python_tag|>{call}")
    assert (parsed.content, len(parsed.calls)) == ("I look.", 1)
    text = "I look.<|python_tag|>print(1)"
    assert read("llama", text) == Parsed(text, ())
    assert read("llama", 'As JSON: {"name": "f", "parameters": {}}').calls == ()


def test_mistral_reads_one_object_or_a_list_and_keeps_ids() -> None:
    parsed = read("mistral", '[TOOL_CALLS]{"name": "f", "arguments": {}, "id": "abc"} Bye')
    assert parsed.content == "Bye"
    assert [call.id for call in parsed.calls] == ["abc"]
    mixed = '[TOOL_CALLS] [{"name": "f", "arguments": {}}, 3]'
    assert read("mistral", mixed) == Parsed(mixed, ())


def test_json_may_stand_in_a_fence_and_say_tool() -> None:
    text = 'I look.\n```json\n{"tool": "f", "arguments": {"a": 1}}\n```\nDone.'
    parsed = read("json", text)
    assert pairs(parsed) == [("f", {"a": 1})]
    assert parsed.content == "I look.\n\nDone."


def test_json_that_is_no_call_is_text() -> None:
    for text in (
        '{"name": "Ann"}',
        "[1, 2]",
        '{"a": {"name": "f"}}',
        "```json\n{}\n```",
        "{",
        "[]",
    ):
        assert read("json", text) == Parsed(text, ())


@pytest.mark.parametrize("dialect", NAMES)
def test_calls_beyond_the_limit_are_no_calls(dialect: str) -> None:
    text = "\n".join([written(dialect, "{}")] * (MOST_CALLS + 5))
    assert len(read(dialect, text).calls) <= MOST_CALLS


def test_thoughts_are_not_spoken() -> None:
    assert spoken("<think>a</think>b", thinking=False) == "b"
    assert spoken("a</think>b", thinking=True) == "b"
    assert spoken("a</think>b", thinking=False) == "a</think>b"
    assert spoken("<think>a", thinking=False) == ""


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
def test_reading_takes_linear_time(dialect: str, text: str) -> None:
    best = float("inf")
    for _ in range(3):
        started = time.process_time()
        DIALECTS[dialect].read(text)
        best = min(best, time.process_time() - started)
    assert best < 0.05


pieces = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "```json", "```"),
        *('{"name": "f", "arguments": {}}', '{"name": "f", "parameters": {"a": 1}}'),
        *("{", "}", "[", "]", '"', ":", ",", ";", "\n", " ", "\\ud83d", "\ud800", "NaN", "name"),
    ]
)


@settings(deadline=None, max_examples=100)
@given(dialect=st.sampled_from(NAMES), text=st.lists(pieces | st.text(max_size=4)).map("".join))
def test_reading_never_raises_and_its_result_can_be_written(dialect: str, text: str) -> None:
    parsed = read(dialect, text)
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


@settings(deadline=None, max_examples=100)
@given(dialect=st.sampled_from(NAMES), message=messages)
def test_what_a_dialect_writes_it_reads_back(dialect: str, message: Message) -> None:
    parsed = read(dialect, DIALECTS[dialect].write(message))
    assert parsed.content == (message.content or "")
    assert pairs(parsed) == [(call.name, call.arguments) for call in message.tool_calls or ()]


@pytest.mark.parametrize("dialect", NAMES)
def test_a_description_names_every_tool_and_shows_a_call(dialect: str) -> None:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {}}} for name in ("f", "g")
    ]
    text = DIALECTS[dialect].describe(tools)
    assert [json.loads(line)["name"] for line in text.splitlines()[1:3]] == ["f", "g"]
    assert text.endswith(DIALECTS[dialect].rule)
