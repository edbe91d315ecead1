"""The user's side of an episode: one object per episode that returns one message at a time."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from grpo_cl.envs.base import STOP as STOP
from grpo_cl.types import Message, ModelCall

TRANSFER = "###TRANSFER###"
"""The agent has transferred the user to a human."""

OUT_OF_SCOPE = "###OUT-OF-SCOPE###"
"""The scenario does not say how to continue."""

STOP_TOKENS = (STOP, TRANSFER, OUT_OF_SCOPE)
"""Each of these in a user's text ends the episode."""

USER_CALL_PREFIX = "user_call"
"""Prefix of the ids of the user's tool calls."""


class User(ABC):
    """The user of one episode."""

    @property
    def model_calls(self) -> Sequence[ModelCall]:
        """The model calls that the user has made; empty for a user without a model."""
        return ()

    @abstractmethod
    async def respond(self, messages: Sequence[Message]) -> Message:
        """The user's next message: text, or tool calls with requestor ``user``, never both.

        ``messages`` are those visible to the user: the agent's texts (role ``assistant``), the
        user's own messages, and the results of the user's own tool calls (role ``tool``).
        """


def is_stop(message: Message) -> bool:
    """Whether a user's message ends the episode; a message with tool calls never does."""
    if message.tool_calls is not None:
        return False
    content = message.content or ""
    return any(token in content for token in STOP_TOKENS)
