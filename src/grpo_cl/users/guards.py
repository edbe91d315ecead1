"""Replies that no customer would give: found, and asked for again."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from grpo_cl.types import Message
from grpo_cl.users.base import STOP, is_stop
from grpo_cl.users.cues import consent_asks
from grpo_cl.users.sentences import any_of

_NO = re.compile(r"^\W*(?:no\b|never mind|don't|do not|cancel that)", re.IGNORECASE)
_AGENT_SPEAKS = any_of(
    r"\bhow (?:can|may) i (?:help|assist) you\b",
    r"\b(?:is there )?anything else (?:that )?i can (?:help|assist|do)\b",
    r"\bi(?:'d| would| am|'m) (?:be )?(?:happy|glad) to (?:help|assist) you\b",
    r"\bthank you for (?:contacting|calling|reaching out to) (?:us|our)\b",
    r"\bi(?:'ve| have) (?:successfully )?(?:processed|cancelled|canceled|booked|refunded"
    r"|updated|issued) your\b",
    r"\b(?:as|i am|i'm) (?:an ai|a language model|a customer (?:service|support) (?:agent"
    r"|representative))\b",
)


class Guard(NamedTuple):
    """Something a reply must not be."""

    name: str
    is_met: Callable[[Message, Sequence[Message]], bool]
    """From the user's reply and the conversation before it."""
    advice: str


def _is_empty(reply: Message, messages: Sequence[Message]) -> bool:
    del messages
    return not reply.tool_calls and not (reply.content or "").strip()


def _stops_at_confirmation(reply: Message, messages: Sequence[Message]) -> bool:
    text = reply.content or ""
    if not is_stop(reply) or STOP not in text or _NO.match(text):
        return False
    return bool(messages) and messages[-1].role == "assistant" and asks_to_confirm(messages[-1])


def asks_to_confirm(message: Message) -> bool:
    """Whether the agent waits for a yes before it acts."""
    return bool(consent_asks(message.content or ""))


def _is_agent(reply: Message, messages: Sequence[Message]) -> bool:
    text = (reply.content or "").strip()
    if reply.tool_calls or not text:
        return False
    heard = [m.content.strip() for m in messages if m.role == "assistant" and m.content]
    return bool(_AGENT_SPEAKS.search(text)) or (len(text) > MIN_COPY and text in heard)


MIN_COPY = 20
"""Characters from which on the agent's own words cannot be the user's by chance."""

EMPTY, EARLY_STOP, WRONG_ROLE = "empty", "stop_at_confirmation", "agent_role"

GUARDS = (
    Guard(EMPTY, _is_empty, "Your last reply was empty. Write the customer's next message."),
    Guard(
        EARLY_STOP,
        _stops_at_confirmation,
        "Your last reply ended the conversation while the agent waits for your yes or no: what you "
        f"agree to would never be done. Answer the question, without {STOP}.",
    ),
    Guard(
        WRONG_ROLE,
        _is_agent,
        "Your last reply was what the support agent would say. You are the customer: write the "
        "customer's next message.",
    ),
)


def find_fault(reply: Message, messages: Sequence[Message]) -> Guard | None:
    """The first guard that a reply runs into; ``messages`` are what the user saw before it."""
    return next((guard for guard in GUARDS if guard.is_met(reply, messages)), None)


def without_stop(reply: Message) -> Message:
    """The reply without the mark that ends the conversation."""
    text = (reply.content or "").replace(STOP, "").strip()
    return reply.model_copy(update={"content": text or "Yes, please go ahead."})
