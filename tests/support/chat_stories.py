"""Conversations for the chat tests, and their rendering by the templates."""

from collections.abc import Sequence
from typing import Any

from chat_templates import STYLES, TOOLS, tokenizer_of
from grpo_cl.policy.chat.chat import Chat
from grpo_cl.rollout import Scene
from grpo_cl.types import Message, Task, ToolCall, UserScenario

TASK = Task(id="t", domain="d", user_scenario=UserScenario(instructions="none"))


SYSTEM = "You are an agent."


GREETING = Message(role="assistant", content="Hello, how can I help you today?")


def episode_setup(
    *, system: str = SYSTEM, solo: bool = False, tools: Sequence[Any] = TOOLS
) -> Scene:
    return Scene(task=TASK, system=system, tools=tools, solo=solo, seed=0)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def said(text: str) -> Message:
    return Message(role="assistant", content=text)


def calling(*orders: str) -> Message:
    calls = (
        ToolCall(id=f"call0000{number}", name="find_order", arguments={"order": order})
        for number, order in enumerate(orders)
    )
    return Message(role="assistant", tool_calls=tuple(calls))


def result(text: str, number: int = 0) -> Message:
    return Message(role="tool", id=f"call0000{number}", content=text)


def decoded(style: str, ids: Sequence[int]) -> str:
    text = tokenizer_of(style).decode(
        list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    assert isinstance(text, str)
    return text


def chat_of(style: str, dialect: str = "auto") -> Chat:
    return Chat(tokenizer_of(style), dialect=dialect)


def episode(chat: Chat, opening: Sequence[Message], turns: Sequence[Any]) -> list[int]:
    """Ids of an episode whose ``turns`` are pairs of a reply and the messages after it."""
    ids = chat.opening(episode_setup(), opening)
    for reply, after in turns:
        ids += chat.encode_reply(reply) + chat.continuation(after, ended=True)
    return ids


def rendered(style: str, turns: Sequence[dict[str, Any]], *, tools: Any = None) -> str:
    text = tokenizer_of(style).apply_chat_template(
        list(turns),
        tools=tools,
        tokenize=False,
        add_generation_prompt=True,
        chat_template=fixed_date(STYLES[style].source or ""),
    )
    assert isinstance(text, str)
    return text


def fixed_date(source: str) -> str:
    return source.replace("strftime_now('%d %b %Y')", "'26 Jul 2024'")


def as_turn(message: Message) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "id": c.id,
                "type": "function",
                "function": c.model_dump(include={"name", "arguments"}),
            }
            for c in message.tool_calls
        ]
    if message.role == "tool":
        turn["tool_call_id"] = message.id
    return turn


STORY = (
    (calling("W1"), [result('{"status": "open"}')]),
    (calling("W2"), [result("Error: no such order\nTry again.")]),
    (said("It is on its way."), [user("And the other one?")]),
    (calling("W3"), [result("lost")]),
)


def flat(*exchanges: Any) -> list[Message]:
    return [message for reply, after in exchanges for message in (reply, *after)]
