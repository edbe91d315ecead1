"""Users by name, and the scripted user in conversation."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_cl.errors import ConfigError
from grpo_cl.types import Message, StructuredInstructions, Task, ToolCall
from grpo_cl.users import USERS, make_user
from grpo_cl.users.base import OUT_OF_SCOPE, STOP, TRANSFER, is_stop
from grpo_cl.users.scripted.user import ScriptedUser
from user_dialogues import CANCELLER, GREETING, plain, talk, tau2_tasks


def test_stop_token_anywhere_in_the_text_ends_the_episode():
    assert is_stop(Message(role="user", content=f"Bye. {STOP}"))
    assert is_stop(Message(role="user", content=f"{TRANSFER} ok"))
    assert is_stop(Message(role="user", content=OUT_OF_SCOPE))
    assert not is_stop(Message(role="user", content="Please do not stop."))
    assert not is_stop(Message(role="user"))


def test_stop_token_next_to_a_tool_call_is_ignored():
    call = ToolCall(id="1", name="check_status_bar", requestor="user")
    assert not is_stop(Message(role="user", content=STOP, tool_calls=(call,)))


def test_solo_mode_has_no_user():
    assert make_user("solo", CANCELLER, ()) is None
    assert isinstance(make_user("scripted", CANCELLER, ()), ScriptedUser)
    assert set(USERS) >= {"scripted", "solo"}


def test_error_for_an_unknown_strategy_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"'scripte'.*scripted, solo.*Did you mean 'scripted'"):
        make_user("scripte", CANCELLER, ())


@pytest.mark.parametrize("domain", ["airline", "retail"])
def test_user_of_every_tau2_task_opens_answers_confirms_and_stops(domain: str):
    for task in tau2_tasks(domain):
        opening = talk(task)[0]
        assert not opening.lower().startswith("you"), opening
        assert "###" not in opening
        identity = talk(task, "Could you please tell me your user id, or your name and zip code?")[
            0
        ]
        known = task.user_scenario.instructions
        assert isinstance(known, StructuredInstructions)
        ids = [w.strip(".,()'") for w in (known.known_info or "").split() if "_" in w]
        assert all(item in identity for item in ids if "@" not in item), (task.id, identity)
        agreed = talk(task, *["I will do it now. Do you confirm (yes/no)?"] * 4)
        assert any(reply.startswith(("Yes", "No.")) for reply in agreed), (task.id, agreed)
        ends = talk(task, *["Done! Is there anything else I can help you with?"] * 12)
        assert any(STOP in reply for reply in ends), (task.id, ends)


@pytest.mark.parametrize("domain", ["airline", "retail"])
def test_opening_of_a_tau2_task_does_not_reveal_name_or_id(domain: str):
    for task in tau2_tasks(domain):
        known = task.user_scenario.instructions
        assert isinstance(known, StructuredInstructions)
        opening = talk(task)[0]
        assert "My name is" not in opening
        assert (known.known_info or "?").splitlines()[0] not in opening


def test_every_mock_and_banking_scenario_opens_in_the_first_person():
    for task in (*tau2_tasks("mock"), *tau2_tasks("banking_knowledge")):
        opening = talk(task)[0]
        assert opening
        assert not opening.startswith("You "), opening
        assert "###" not in opening


def history(texts: Sequence[str], task: Task) -> list[Message]:
    user, messages = ScriptedUser(task, ()), list[Message]()
    for text in texts:
        messages.append(Message(role="assistant", content=text))
        messages.append(asyncio.run(user.respond(messages)))
    return messages


def test_new_user_gives_the_same_reply_to_the_same_messages():
    texts = (GREETING, "What is your user id?", "It cannot be cancelled.", "Anything else?")
    messages = history(texts, CANCELLER)
    for end in range(1, len(messages), 2):
        fresh = ScriptedUser(CANCELLER, ())
        assert asyncio.run(fresh.respond(messages[:end])) == messages[end]


def test_opening_follows_a_message_history():
    messages = [
        Message(role="user", content="I need a task."),
        Message(role="assistant", content="I have created it. Anything else?"),
    ]
    task = plain("The previous discussion was about a task. Now you want to mark it as completed.")
    reply = asyncio.run(ScriptedUser(task, ()).respond(messages))
    assert "Now I want to mark it as completed." in (reply.content or "")


@given(st.lists(st.text(max_size=120), min_size=1, max_size=5))
def test_any_agent_text_gets_a_valid_reply(texts: list[str]):
    for message in history(texts, CANCELLER)[1::2]:
        assert message.role == "user"
        assert message.content
        assert message.tool_calls is None


@given(
    st.lists(
        st.sampled_from(
            [
                "you",
                "your",
                "agent",
                "if",
                "not",
                "possible",
                "please",
                "confirm",
                "which",
                "what",
                "order",
                "reservation",
                "cancel",
                "anything",
                "else?",
                "transfer",
                "transferred",
                "sorry,",
                "cannot",
                "the",
                "id",
                "zip",
                "code",
                "yes/no",
                "do",
                "want",
                ".",
                "?",
                ",",
                "turn",
                "off",
                "it",
                "and",
                "then",
                "email",
                "name",
                "insurance",
                "bags",
                "payment",
            ]
        ),
        max_size=40,
    ).map(" ".join)
)
def test_random_words_get_a_valid_reply(text: str):
    reply = history((GREETING, text), CANCELLER)[-1]
    assert (reply.content is None) != (reply.tool_calls is None)
