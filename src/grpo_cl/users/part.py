"""What a strategy knows when it writes one message for the user."""

from collections.abc import Sequence
from typing import NamedTuple

from grpo_cl.domains.base import ToolSchema
from grpo_cl.models import Completion, Prompt, Voice
from grpo_cl.types import Message

REPLY, REWRITE = "reply", "rewrite"
"""What a call is for that writes the user's message, at first and after a check."""

OPENING = "(The support agent is on the line.)"
"""Stands for the agent's first words where a conversation begins with the user's."""


class Part(NamedTuple):
    """The user's side of one turn."""

    system: str
    """Guidelines and scenario."""
    tools: Sequence[ToolSchema]
    messages: Sequence[Message]
    """What the user sees, as the episode tells it."""
    voice: Voice
    notes: tuple[str, ...] = ()
    """What was wrong with earlier drafts of this message."""
    checks: int = 1
    """How often a draft may be sent back."""

    def with_note(self, note: str) -> "Part":
        """The part with one more note on what was wrong."""
        return self._replace(notes=(*self.notes, note))

    async def draft(self, *, manner: str = "", purpose: str = REPLY) -> Completion:
        """The model's next message as the customer; ``manner`` says how it is to be written."""
        messages = [*mirrored(self.messages), *(_note(note) for note in self.notes)]
        system = f"{self.system}\n\n{manner}".rstrip()
        return await self.voice.ask(Prompt(system, messages, self.tools), purpose=purpose)


def _note(note: str) -> Message:
    return Message(role="user", content=f"(A note from the director, not from the agent: {note})")


def mirrored(messages: Sequence[Message]) -> list[Message]:
    """The conversation from the user's side, where the user is the assistant of the chat."""
    seen = [_mirrored(message) for message in messages]
    if not seen or seen[0].role == "assistant":
        seen.insert(0, Message(role="user", content=OPENING))
    return seen


def _mirrored(message: Message) -> Message:
    if message.role == "assistant":
        return Message(role="user", content=message.content)
    if message.role == "tool":
        return message.model_copy(update={"requestor": "assistant"})
    calls = message.tool_calls and tuple(
        call.model_copy(update={"requestor": "assistant"}) for call in message.tool_calls
    )
    return message.model_copy(update={"role": "assistant", "tool_calls": calls})


def spoken(completion: Completion) -> Message:
    """A completion as the user's message; with calls nothing is said, as nobody would hear it."""
    if not completion.tool_calls:
        return Message(role="user", content=completion.content.strip())
    calls = [call.model_copy(update={"requestor": "user"}) for call in completion.tool_calls]
    return Message(role="user", tool_calls=tuple(calls))
