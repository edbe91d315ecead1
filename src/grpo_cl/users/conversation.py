"""A conversation as one side sees it: what was said, and what was done since."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from grpo_cl.types import Message
from grpo_cl.users.steps import Outcome


class Exchange(NamedTuple):
    """Something the agent said, and the user's words in return."""

    agent: str
    user: str


class Conversation(NamedTuple):
    """Everything a scripted user may base its next message on."""

    agent: str
    """The agent's latest message; empty before it has spoken."""
    past: tuple[Exchange, ...]
    """The exchanges before it."""
    done: tuple[Outcome, ...]
    """The user's calls since the agent's latest message."""
    call_count: int
    """The user's calls in the whole conversation."""

    @property
    def said(self) -> str:
        """All that the user has said."""
        return "\n".join(exchange.user for exchange in self.past)

    def has_said(self, text: str) -> bool:
        """Whether the user has used these words before."""
        return text in self.said

    @property
    def is_repeat(self) -> bool:
        """Whether the agent has said its latest message before."""
        now = _letters(self.agent)
        return bool(now) and any(_letters(exchange.agent) == now for exchange in self.past)


def read_conversation(messages: Sequence[Message]) -> Conversation:
    """The conversation in ``messages``, which end with an agent's text or with results of calls."""
    agent, past, done, calls = "", list[Exchange](), list[Outcome](), 0
    results = {message.id: message.content or "" for message in messages if message.role == "tool"}
    for message in messages:
        if message.role == "assistant" and message.content:
            agent, done = message.content, []
        elif message.role == "user" and message.tool_calls:
            calls += len(message.tool_calls)
            done += [Outcome(call, results.get(call.id, "")) for call in message.tool_calls]
        elif message.role == "user" and message.content:
            past.append(Exchange(agent, message.content))
            done = []
    return Conversation(agent, tuple(past), tuple(done), calls)


def before(conversation: Conversation, index: int) -> Conversation:
    """The conversation as it stood before its exchange number ``index`` was answered."""
    exchange = conversation.past[index]
    return Conversation(exchange.agent, conversation.past[:index], (), 0)


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()
