"""Plain-text chat messages for engines without tool calling.

Tools are described in the system message, tool calls are parsed from the text of a reply, and tool
results are user messages, as ``policy.chat`` does for chat templates without tool support.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from grpo_cl.integrations.rows import SOLO_PROMPT
from grpo_cl.integrations.session import read_reply
from grpo_cl.policy.chat.dialects import dialect_named
from grpo_cl.rollout import Scene
from grpo_cl.types import Message

ChatMessage = dict[str, str]
"""A message with ``role`` and ``content``."""

_END_TOKEN = re.compile(r"(?:<\|\w+\|>|<end_of_turn>|</s>)\s*$")
"""An end-of-turn token that the engine left in the text of a reply."""


class TextChat(NamedTuple):
    """Formats the messages of an episode with the tool-call format ``dialect``."""

    dialect: str

    def opening(self, scene: Scene, messages: Sequence[Message]) -> list[ChatMessage]:
        """The messages before the first reply."""
        tools = dialect_named(self.dialect).describe_tools(scene.tools) if scene.tools else ""
        system = "\n\n".join(part for part in (tools, scene.system) if part)
        chat = self.observation(messages)
        if not any(message["role"] == "user" for message in chat):
            chat.append({"role": "user", "content": SOLO_PROMPT})
        return [{"role": "system", "content": system}, *chat]

    def observation(self, messages: Sequence[Message]) -> list[ChatMessage]:
        """The messages after a reply; consecutive tool results are joined into one."""
        dialect = dialect_named(self.dialect)
        chat: list[ChatMessage] = []
        results: list[str] = []
        for message in messages:
            if message.role != "tool":
                results = []
                text = (
                    dialect.format_message(message) if message.tool_calls else message.content or ""
                )
                chat.append({"role": message.role, "content": text})
                continue
            results.append(message.content or "")
            if len(results) > 1:
                chat.pop()
            chat.append({"role": "user", "content": dialect.format_results(results)})
        return chat

    def reply(self, text: str) -> Message:
        """Parse a reply of the policy."""
        return read_reply(_END_TOKEN.sub("", text), self.dialect)
