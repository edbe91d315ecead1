"""Guards against user replies that no customer would give; a violating reply is asked for again."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from grpo_cl.types import Message
from grpo_cl.users.base import STOP, is_stop
from grpo_cl.users.scripted.dialogue_acts import consent_questions
from grpo_cl.users.scripted.sentences import any_of

_NO = re.compile(r"^\W*(?:no\b|never mind|don't|do not|cancel that)", re.IGNORECASE)
_AGENT_PHRASES = any_of(
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
    """A check of a reply, and the note to the model if the check fails."""

    name: str
    is_violated: Callable[[Message, Sequence[Message]], bool]
    """Takes the user's reply and the messages before it."""
    advice: str


def _is_empty(reply: Message, messages: Sequence[Message]) -> bool:
    del messages
    return not reply.tool_calls and not (reply.content or "").strip()


def _stops_at_confirmation(reply: Message, messages: Sequence[Message]) -> bool:
    text = reply.content or ""
    if not is_stop(reply) or STOP not in text or _NO.match(text):
        return False
    return bool(messages) and messages[-1].role == "assistant" and asks_for_consent(messages[-1])


def asks_for_consent(message: Message) -> bool:
    """Whether the agent asks for a yes before it acts."""
    return bool(consent_questions(message.content or ""))


def _is_agent_text(reply: Message, messages: Sequence[Message]) -> bool:
    text = (reply.content or "").strip()
    if reply.tool_calls or not text:
        return False
    agent_texts = [m.content.strip() for m in messages if m.role == "assistant" and m.content]
    return bool(_AGENT_PHRASES.search(text)) or (len(text) > MIN_COPY and text in agent_texts)


MIN_COPY = 20
"""A longer text, in characters, that equals a message of the agent counts as a copy of it."""

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
        _is_agent_text,
        "Your last reply was what the support agent would say. You are the customer: write the "
        "customer's next message.",
    ),
)


def first_violation(reply: Message, messages: Sequence[Message]) -> Guard | None:
    """The first guard that ``reply`` violates; ``messages`` are those the user saw before it."""
    return next((guard for guard in GUARDS if guard.is_violated(reply, messages)), None)


def without_stop(reply: Message) -> Message:
    """The reply without the stop token."""
    text = (reply.content or "").replace(STOP, "").strip()
    return reply.model_copy(update={"content": text or "Yes, please go ahead."})
