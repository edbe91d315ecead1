"""What the loopback server says in the parts that models play."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from chat_server import Body, calling, form_of
from grpo_cl.domains.base import Domain
from grpo_cl.types import Message, Task, ToolCall
from grpo_cl.users.guidelines import scenario_text
from grpo_cl.users.part import OPENING
from grpo_cl.users.scripted import ScriptedUser

THOUGHT = "The agent must not read this."


class Customers:
    """Speaks for the users of tasks as scripted ones would, and approves of every draft."""

    def __init__(self, domain: Domain, tasks: Sequence[Task]) -> None:
        self._users = {scenario_text(task): ScriptedUser(task, domain.user_tools) for task in tasks}

    def __call__(self, body: Body) -> str | Mapping[str, Any]:
        system = str(body["messages"][0]["content"])
        if form_of(body) == "check":
            return 'Here it is: {"fits": true, "problem": ""}'
        if system.startswith("You coach"):
            return "KEEP"
        (user,) = [user for scenario, user in self._users.items() if scenario in system]
        message = asyncio.run(user.respond(_told(body["messages"][1:])))
        if message.tool_calls:
            return calling(message.tool_calls[0].name, message.tool_calls[0].arguments)
        thought = f"<thought>{THOUGHT}</thought>\n" if "<thought>" in system else ""
        return f"{thought}{message.content}"


def _told(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The conversation as an episode tells it, from how a model is given it."""
    return [_message(entry) for entry in messages if entry.get("content") != OPENING]


def _message(entry: Mapping[str, Any]) -> Message:
    content = entry.get("content") or None
    if entry["role"] == "tool":
        return Message(
            role="tool", id=entry["tool_call_id"], content=content or "", requestor="user"
        )
    calls = [
        ToolCall(
            id=call["id"],
            name=call["function"]["name"],
            arguments=json.loads(call["function"]["arguments"]),
            requestor="user",
        )
        for call in entry.get("tool_calls") or ()
    ]
    role = "assistant" if entry["role"] == "user" else "user"
    return Message(role=role, content=content, tool_calls=tuple(calls) or None)


class GoldAgent:
    """Plays the agent of one task: its gold calls one by one, and then it closes."""

    def __init__(self, task: Task, *, solo: bool) -> None:
        self._calls = [action.call for action in task.gold_actions]
        self._solo = solo

    def __call__(self, body: Body) -> str | Mapping[str, Any]:
        made = sum(bool(entry.get("tool_calls")) for entry in body["messages"])
        if made < len(self._calls):
            return calling(self._calls[made].name, self._calls[made].arguments, made)
        return calling("done", {}) if self._solo else "Is there anything else I can help you with?"
