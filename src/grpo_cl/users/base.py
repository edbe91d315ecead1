"""What talks to the agent: one object per episode, asked for one message at a time."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from grpo_cl.transcripts import ModelCall
from grpo_cl.types import Message

STOP = "###STOP###"
"""The user has what they came for, or has given up."""

TRANSFER = "###TRANSFER###"
"""The agent has handed the user over to a person."""

OUT_OF_SCOPE = "###OUT-OF-SCOPE###"
"""The scenario does not say enough to go on."""

STOP_TOKENS = (STOP, TRANSFER, OUT_OF_SCOPE)
"""Any of these in a user's text ends the episode."""


class User(ABC):
    """The other side of one conversation."""

    is_stream: ClassVar[bool] = False
    """Whether it opens the episode, speaks after every message of the agent, whatever that was, and
    ends the episode by itself."""

    @property
    def model_calls(self) -> Sequence[ModelCall]:
        """What models were asked on the user's behalf; nothing where none plays a part."""
        return ()

    @abstractmethod
    async def respond(self, messages: Sequence[Message]) -> Message:
        """The user's next message: text, or tool calls with requestor ``user``, never both.

        ``messages`` is what the user sees: the agent's texts (role ``assistant``),
        the user's own messages, and the results of the user's own tool calls (role ``tool``).
        """


def is_stop(message: Message) -> bool:
    """Whether a user's message ends the episode; a message with tool calls never does."""
    if message.tool_calls is not None:
        return False
    content = message.content or ""
    return any(token in content for token in STOP_TOKENS)
