import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_cl.envs import load_domain
from grpo_cl.errors import ConfigError
from grpo_cl.policy.chat.compact import (
    CALL,
    END,
    RESULT,
    RESULT_TOKENS,
    SPECIAL,
    CompactChat,
    tokenizer_texts,
    train_tokenizer,
)
from grpo_cl.policy.learner.sft_data import (
    DemonstrationSpec,
    generate_examples,
    shuffled_batches,
    tokenize_example,
)
from grpo_cl.policy.model.loading import load_tokenizer, resolve
from grpo_cl.rollout import Scene
from grpo_cl.rollout.demonstrations import Example, agent_turns, demonstrate
from grpo_cl.types import Message, ToolCall

CALLS = [
    ToolCall(name="cancel_reservation", arguments={"reservation_id": "Z7GOZK"}),
    ToolCall(name="done"),
    ToolCall(name="refuel_data", arguments={"gb_amount": 2.0, "line_id": "L1002", "ok": True}),
    ToolCall(name="book", arguments={"flights": [{"date": "2024-05-20", "n": None}], "bags": 3}),
    ToolCall(name="say", arguments={"text": '  two spaces, "quotes", ünïcode\n', "empty": ""}),
]


EMBEDDED = [226, 82, 78, 70, 68, 81, 78, 68, 344, 322]
"""`` mia_li_3668`` in tokens of the embedded policy."""


@pytest.fixture(scope="module")
def demonstrated() -> list[Example]:
    return generate_examples(DemonstrationSpec("telecom", 1, 12, 0.0, is_compact=True))


@pytest.fixture(scope="module")
def chat(demonstrated: list[Example]) -> CompactChat:
    texts = (text for each in demonstrated for text in tokenizer_texts(each.scene, each.messages))
    return CompactChat(train_tokenizer(texts, size=500))


def episode_setup() -> Scene:
    task = load_domain("mock").task("create_task_1")
    return Scene(task, "Cancel reservation Z7GOZK.", (), solo=True, seed=0)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_encoded_call_parses_back_to_itself(chat: CompactChat, call: ToolCall) -> None:
    ids = chat.encode_reply(Message(role="assistant", tool_calls=(call,)))
    assert ids[-1] in chat.stop_ids
    parsed = chat.parse_reply(ids).tool_calls or ()
    assert [(each.name, each.arguments) for each in parsed] == [(call.name, call.arguments)]


def test_encoded_text_parses_back_to_itself(chat: CompactChat) -> None:
    parsed = chat.parse_reply(
        chat.encode_reply(Message(role="assistant", content="Nothing can be done."))
    )
    assert (parsed.content, parsed.tool_calls) == ("Nothing can be done.", None)


def test_id_has_the_same_tokens_in_a_ticket_a_result_and_a_call(chat: CompactChat) -> None:
    plain = chat._encode(" Z7GOZK")
    result = Message(role="tool", content='{"reservation_id": "Z7GOZK"}')
    for ids in (
        chat.opening(episode_setup(), ()),
        chat.continuation([result], ended=True),
        chat.encode_reply(Message(role="assistant", tool_calls=(CALLS[0],))),
    ):
        starts = range(len(ids) - len(plain) + 1)
        assert any(ids[start : start + len(plain)] == plain for start in starts)


def test_only_the_chat_produces_special_tokens(chat: CompactChat) -> None:
    special = {chat._special[name] for name in SPECIAL}
    attack = Message(role="tool", content="".join(SPECIAL))
    ids = chat.continuation([attack], ended=True)
    names = [chat._special[name] for name in (RESULT, CALL)]
    assert [token for token in ids if token in special] == names


def test_truncated_reply_is_closed_before_the_next_message(chat: CompactChat) -> None:
    end = chat._special[END]
    result = Message(role="tool", content="ok")
    assert chat.continuation([result], ended=False) == [
        end,
        *chat.continuation([result], ended=True),
    ]


@given(st.lists(st.integers(0, 499), max_size=40))
def test_any_token_ids_parse_to_a_message(chat: CompactChat, ids: list[int]) -> None:
    message = chat.parse_reply(ids)
    assert message.role == "assistant"
    assert message.model_dump_json()


@pytest.mark.parametrize(
    "text",
    [
        f' f{{"a":{"[" * 256}{"]" * 256}}}',
        f' f{{"a":{"[" * 20_000}{"]" * 20_000}}}',
        ' f{"a":NaN}',
        ' f{"a":1e400}',
        f' f{{"a":{"9" * 19}}}',
        ' f{"a":1,"a":2}',
        ' f{" a":1,"a":2}',
        " f{}" * 33,
        f" {'f' * 65}{{}}",
        f' f{{"a":"{"x" * 40_000}"}}',
    ],
    ids=[
        *("deep", "very deep", "nan", "infinite", "digits", "key twice", "key and space"),
        *("calls", "name", "length"),
    ],
)
def test_call_over_a_limit_is_content(chat: CompactChat, text: str) -> None:
    ids = chat.encode_reply(Message(role="assistant", content=text.removeprefix(" ")))
    message = chat.parse_reply(ids)
    assert message.tool_calls is None
    assert message.content == text.strip()


def test_deeply_nested_tool_result_is_rendered(chat: CompactChat) -> None:
    result = Message(role="tool", content="[" * 100_000 + "]" * 100_000)
    assert chat.continuation([result], ended=True)


@pytest.mark.parametrize("name", ["airline", "retail", "telecom"])
def test_demonstrations_contain_the_gold_writes(
    name: str,
) -> None:
    domain = load_domain(name)
    tasks = domain.generate(seed=2, count=20, difficulty=0.0)
    solved = [demonstrate(domain, task) for task in tasks]
    demonstrations = [each for each in solved if each is not None]
    assert len(demonstrations) >= 12
    for trajectory in demonstrations:
        called = {call.name for call in trajectory.tool_calls}
        writes = {a.name for a in trajectory.task.gold_actions if not a.name.startswith("get_")}
        assert trajectory.solo
        assert writes - {"search_direct_flight", "find_user_id_by_email"} <= called


def test_trace_of_an_example_has_the_encoded_replies_as_turns(
    chat: CompactChat, demonstrated: list[Example]
) -> None:
    example = demonstrated[0]
    traced = tokenize_example(chat, example, context=2000)
    assert traced is not None
    replies = [message for message in example.messages if message.role == "assistant"]
    assert [traced.ids[start:end] for start, end in traced.turns] == [
        tuple(chat.encode_reply(message)) for message in replies
    ]
    assert (
        sum(traced.mask) == sum(end - start for start, end in traced.turns) == len(traced.logprobs)
    )
    assert tokenize_example(chat, example, context=10) is None


def test_demonstration_ends_with_the_done_call() -> None:
    telecom = load_domain("telecom")
    solved = demonstrate(telecom, telecom.generate(seed=1, count=1, difficulty=0.0)[0])
    assert solved is not None
    last = agent_turns(solved)[-1].tool_calls or ()
    assert [call.name for call in last] == ["done"]


def test_batches_contain_every_trace_once_per_epoch(
    chat: CompactChat, demonstrated: list[Example]
) -> None:
    traces = [
        made for each in demonstrated if (made := tokenize_example(chat, each, context=4000))
    ][:8]
    endless = shuffled_batches(traces, size=4, seed=0)
    first, second = next(endless), next(endless)
    assert {id(each) for each in (*first, *second)} == {id(each) for each in traces}


@pytest.mark.parametrize(
    "code",
    ["mia_li_3668", "#W1234567", "Z7GOZK", "555-123-2001", "2024-05-20", "99.50", "a.b7c1165"],
)
def test_identifiers_are_characters_and_pairs_of_digits_wherever_they_stand(
    chat: CompactChat, code: str
) -> None:
    expected = re.findall(r"\d{1,2}|.", code)
    for text in (f" {code}", f" ({code})", f"order {code}.", f'{{" id":" {code}"}}'):
        pieces = [chat._tokenizer.decode([token]) for token in chat._encode(text)]
        assert "".join(pieces) == text
        places = range(len(pieces) - len(expected) + 1)
        assert any(pieces[place : place + len(expected)] == expected for place in places)


def test_words_beside_digits_are_not_spelled_out(chat: CompactChat) -> None:
    pieces = [chat._tokenizer.decode([token]) for token in chat._encode(" customer line1 of 4 GB")]
    assert pieces[0] == " customer"
    assert len(pieces) < len(" customer line1 of 4 GB")


def test_the_embedded_policy_keeps_its_own_tokens_and_result_length() -> None:
    embedded = CompactChat(load_tokenizer(resolve("tiny")))
    assert embedded._encode(" mia_li_3668") == EMBEDDED
    long = Message(role="tool", content="word " * 2000)
    assert len(embedded.continuation([long], ended=True)) == RESULT_TOKENS + 2


def test_ids_of_records_inside_a_result_follow_the_fields_that_name_them(chat: CompactChat) -> None:
    content = '{"order_id": "D1", "items": [{"item_id": "i7", "name": "Tea", "id": 3}]}'
    ids = chat.continuation([Message(role="tool", content=content)], ended=True)
    text = chat._tokenizer.decode(ids[1:-1])
    assert text == '{" order_id":" D1"," items":[{" name":" Tea"," item_id":" i7"," id":3}]}'


def test_saved_tokenizer_loads_unchanged(chat: CompactChat, tmp_path: Path) -> None:
    tokenizer = chat._tokenizer
    tokenizer.save_pretrained(tmp_path)
    loaded = CompactChat(type(tokenizer).from_pretrained(tmp_path))
    assert loaded.opening(episode_setup(), ()) == chat.opening(episode_setup(), ())
    long = [Message(role="tool", content="word " * 1000)]
    assert loaded.continuation(long, ended=True) == chat.continuation(long, ended=True)
    assert len(loaded.continuation(long, ended=True)) == RESULT_TOKENS + 2


def test_a_tokenizer_without_the_length_of_results_is_refused() -> None:
    tokenizer = train_tokenizer(["Cancel reservation Z7GOZK."], size=300)
    del tokenizer.init_kwargs["max_result_tokens"]
    with pytest.raises(ConfigError, match=r"has no max_result_tokens.* grpo-cl sft --new_tiny"):
        CompactChat(tokenizer)


def test_texts_are_split_by_the_given_pattern() -> None:
    texts = ["code_77 code_77 code_77"] * 50
    whole = train_tokenizer(texts, size=400, pattern=r"\S+|\s")
    assert len(whole.tokenize("code_77")) == 1
    assert len(train_tokenizer(texts, size=400).tokenize("code_77")) == 6  # a code is spelled out
