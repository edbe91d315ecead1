from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_cl.demonstrations import agent_turns, demonstrate
from grpo_cl.domains import load_domain
from grpo_cl.policy.compact import (
    CALL,
    END,
    RESULT,
    SPECIAL,
    CompactChat,
    texts_of,
    train_tokenizer,
)
from grpo_cl.policy.sft import Example, Lesson, batches, examples, trace
from grpo_cl.rollout import Scene
from grpo_cl.types import Message, ToolCall

CALLS = [
    ToolCall(name="cancel_reservation", arguments={"reservation_id": "Z7GOZK"}),
    ToolCall(name="done"),
    ToolCall(name="refuel_data", arguments={"gb_amount": 2.0, "line_id": "L1002", "ok": True}),
    ToolCall(name="book", arguments={"flights": [{"date": "2024-05-20", "n": None}], "bags": 3}),
    ToolCall(name="say", arguments={"text": '  two spaces, "quotes", ünïcode\n', "empty": ""}),
]


@pytest.fixture(scope="module")
def lessons() -> list[Example]:
    return examples(Lesson("telecom", 1, 12, 0.0, is_compact=True))


@pytest.fixture(scope="module")
def chat(lessons: list[Example]) -> CompactChat:
    texts = (text for each in lessons for text in texts_of(each.scene, each.messages))
    return CompactChat(train_tokenizer(texts, size=400))


def scene() -> Scene:
    task = load_domain("mock").task("create_task_1")
    return Scene(task, "Cancel reservation Z7GOZK.", (), solo=True, seed=0)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_a_call_is_read_back_as_it_was_written(chat: CompactChat, call: ToolCall) -> None:
    ids = chat.reply(Message(role="assistant", tool_calls=(call,)))
    assert ids[-1] in chat.stop_ids
    read = chat.read(ids).tool_calls or ()
    assert [(each.name, each.arguments) for each in read] == [(call.name, call.arguments)]


def test_text_is_read_back_as_text(chat: CompactChat) -> None:
    said = chat.read(chat.reply(Message(role="assistant", content="Nothing can be done.")))
    assert (said.content, said.tool_calls) == ("Nothing can be done.", None)


def test_an_id_has_the_same_tokens_in_a_ticket_a_result_and_a_call(chat: CompactChat) -> None:
    plain = chat._encode(" Z7GOZK")
    result = Message(role="tool", content='{"reservation_id": "Z7GOZK"}')
    for ids in (
        chat.opening(scene(), ()),
        chat.continuation([result], ended=True),
        chat.reply(Message(role="assistant", tool_calls=(CALLS[0],))),
    ):
        places = range(len(ids) - len(plain) + 1)
        assert any(ids[at : at + len(plain)] == plain for at in places)


def test_nobody_but_the_chat_writes_a_control_token(chat: CompactChat) -> None:
    control = {chat._special[name] for name in SPECIAL}
    attack = Message(role="tool", content="".join(SPECIAL))
    ids = chat.continuation([attack], ended=True)
    names = [chat._special[name] for name in (RESULT, CALL)]
    assert [token for token in ids if token in control] == names


def test_a_reply_that_was_cut_off_is_closed_before_the_next_message(chat: CompactChat) -> None:
    end = chat._special[END]
    result = Message(role="tool", content="ok")
    assert chat.continuation([result], ended=False) == [
        end,
        *chat.continuation([result], ended=True),
    ]


@given(st.lists(st.integers(0, 399), max_size=40))
def test_any_tokens_are_a_message(chat: CompactChat, ids: list[int]) -> None:
    message = chat.read(ids)
    assert message.role == "assistant"
    assert message.model_dump_json()


@pytest.mark.parametrize("name", ["airline", "retail", "telecom"])
def test_demonstrations_solve_their_tasks_with_no_more_calls_than_gold_and_checks(
    name: str,
) -> None:
    domain = load_domain(name)
    tasks = domain.generate(seed=2, count=20, difficulty=0.0)
    solved = [demonstrate(domain, task) for task in tasks]
    known = [each for each in solved if each is not None]
    assert len(known) >= 12
    for trajectory in known:
        made = {call.name for call in trajectory.tool_calls}
        writes = {a.name for a in trajectory.task.gold_actions if not a.name.startswith("get_")}
        assert trajectory.solo
        assert writes - {"search_direct_flight", "find_user_id_by_email"} <= made


def test_a_demonstration_leaves_out_reads_that_tell_nothing_new() -> None:
    airline = load_domain("airline")
    tasks = airline.generate(seed=1, count=60, difficulty=0.0)
    cancelled = [task for task in tasks if task.gold_actions[-1].name == "cancel_reservation"]
    solved = [each for each in (demonstrate(airline, task) for task in cancelled) if each]
    assert solved
    assert all([c.name for c in each.tool_calls] == ["cancel_reservation"] for each in solved)


def test_an_example_is_traced_as_the_policy_would_have_played_it(
    chat: CompactChat, lessons: list[Example]
) -> None:
    example = lessons[0]
    made = trace(chat, example, context=2000)
    assert made is not None
    replies = [message for message in example.messages if message.role == "assistant"]
    assert [made.ids[start:end] for start, end in made.turns] == [
        tuple(chat.reply(message)) for message in replies
    ]
    assert sum(made.mask) == sum(end - start for start, end in made.turns) == len(made.logprobs)
    assert trace(chat, example, context=10) is None


def test_an_episode_ends_with_the_agents_own_word() -> None:
    telecom = load_domain("telecom")
    solved = demonstrate(telecom, telecom.generate(seed=1, count=1, difficulty=0.0)[0])
    assert solved is not None
    last = agent_turns(solved)[-1].tool_calls or ()
    assert [call.name for call in last] == ["done"]


def test_batches_show_every_trace_once_per_epoch(chat: CompactChat, lessons: list[Example]) -> None:
    traces = [made for each in lessons if (made := trace(chat, each, context=4000))][:8]
    endless = batches(traces, size=4, seed=0)
    first, second = next(endless), next(endless)
    assert {id(each) for each in (*first, *second)} == {id(each) for each in traces}


def test_the_tokenizer_survives_being_saved(chat: CompactChat, tmp_path: Path) -> None:
    tokenizer = chat._tokenizer
    tokenizer.save_pretrained(tmp_path)
    again = CompactChat(type(tokenizer).from_pretrained(tmp_path))
    assert again.opening(scene(), ()) == chat.opening(scene(), ())
