"""Replies of the loopback server in the roles that models take: users, checkers and agents."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from chat_server import Body, calling, form_of
from grpo_cl.envs.base import Domain
from grpo_cl.types import Message, Task, ToolCall
from grpo_cl.users.llm.prompts import scenario_text
from grpo_cl.users.llm.strategies import OPENING
from grpo_cl.users.scripted.user import ScriptedUser

THOUGHT = "The agent must not read this."


class Customers:
    """Replies as the scripted users of tasks would, and approves every draft."""

    def __init__(self, domain: Domain, tasks: Sequence[Task]) -> None:
        self._users = {scenario_text(task): ScriptedUser(task, domain.user_tools) for task in tasks}

    def __call__(self, body: Body) -> str | Mapping[str, Any]:
        system = str(body["messages"][0]["content"])
        if form_of(body) == "check":
            return 'Here it is: {"fits": true, "problem": ""}'
        if system.startswith("You coach"):
            return "KEEP"
        (user,) = [user for scenario, user in self._users.items() if scenario in system]
        message = asyncio.run(user.respond(_episode_messages(body["messages"][1:])))
        if message.tool_calls:
            return calling(message.tool_calls[0].name, message.tool_calls[0].arguments)
        thought = f"<thought>{THOUGHT}</thought>\n" if "<thought>" in system else ""
        return f"{thought}{message.content}"


def _episode_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages of an episode, converted from the messages of a model request."""
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
    """The agent of one task: makes its gold calls one by one, then ends the episode."""

    def __init__(self, task: Task, *, solo: bool) -> None:
        self._calls = [action.call for action in task.gold_actions]
        self._solo = solo

    def __call__(self, body: Body) -> str | Mapping[str, Any]:
        num_calls = sum(bool(entry.get("tool_calls")) for entry in body["messages"])
        if num_calls < len(self._calls):
            call = self._calls[num_calls]
            return calling(call.name, call.arguments, num_calls)
        return calling("done", {}) if self._solo else "Is there anything else I can help you with?"
