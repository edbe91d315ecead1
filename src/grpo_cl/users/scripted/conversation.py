"""The conversation as the user sees it: exchanges, and tool results since the last one."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from grpo_cl.types import Message
from grpo_cl.users.scripted.steps import CallResult


class Exchange(NamedTuple):
    """A message of the agent and the user's answer."""

    agent_text: str
    user_text: str


class Conversation(NamedTuple):
    """The state on which a scripted user's next message depends."""

    agent_text: str
    """The agent's latest message; empty before its first."""
    exchanges: tuple[Exchange, ...]
    """All earlier exchanges."""
    results: tuple[CallResult, ...]
    """The user's tool calls since the agent's latest message."""
    num_calls: int
    """The user's tool calls in the whole conversation."""

    @property
    def user_text(self) -> str:
        """All texts of the user so far."""
        return "\n".join(exchange.user_text for exchange in self.exchanges)

    def has_said(self, text: str) -> bool:
        """Whether ``text`` is part of an earlier message of the user."""
        return text in self.user_text

    @property
    def is_repeat(self) -> bool:
        """Whether the agent's latest message repeats an earlier one."""
        latest = _normalize(self.agent_text)
        return bool(latest) and any(
            _normalize(exchange.agent_text) == latest for exchange in self.exchanges
        )


def parse_conversation(messages: Sequence[Message]) -> Conversation:
    """Parse ``messages``, which end with a text of the agent or with tool results."""
    agent_text, exchanges, results, num_calls = "", list[Exchange](), list[CallResult](), 0
    contents = {message.id: message.content or "" for message in messages if message.role == "tool"}
    for message in messages:
        if message.role == "assistant" and message.content:
            agent_text, results = message.content, []
        elif message.role == "user" and message.tool_calls:
            num_calls += len(message.tool_calls)
            results += [CallResult(call, contents.get(call.id, "")) for call in message.tool_calls]
        elif message.role == "user" and message.content:
            exchanges.append(Exchange(agent_text, message.content))
            results = []
    return Conversation(agent_text, tuple(exchanges), tuple(results), num_calls)


def rewind(conversation: Conversation, index: int) -> Conversation:
    """The conversation before the user answered in exchange number ``index``."""
    exchange = conversation.exchanges[index]
    return Conversation(exchange.agent_text, conversation.exchanges[:index], (), 0)


def _normalize(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()
