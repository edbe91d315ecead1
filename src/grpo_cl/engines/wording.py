"""Episodes as chat messages of plain text, for engines that know of no tools.

Tools are described in the system message, calls are read from the reply's text, and results come
back in the user's role, as ``policy.chat`` does for a template that cannot do better.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from grpo_cl.engines.session import read_reply
from grpo_cl.policy.dialects import dialect_named
from grpo_cl.rollout import Scene
from grpo_cl.rows import BEGIN
from grpo_cl.types import Message

ChatMessage = dict[str, str]
"""``role`` and ``content``."""

_END = re.compile(r"(?:<\|\w+\|>|<end_of_turn>|</s>)\s*$")
"""A mark of the end that an engine left in the text of a reply."""


class Wording(NamedTuple):
    """How one dialect puts an episode into words."""

    dialect: str

    def opening(self, scene: Scene, messages: Sequence[Message]) -> list[ChatMessage]:
        """What the policy reads before its first reply."""
        tools = dialect_named(self.dialect).describe(scene.tools) if scene.tools else ""
        system = "\n\n".join(part for part in (tools, scene.system) if part)
        said = self.observation(messages)
        if not any(message["role"] == "user" for message in said):
            said.append({"role": "user", "content": BEGIN})
        return [{"role": "system", "content": system}, *said]

    def observation(self, messages: Sequence[Message]) -> list[ChatMessage]:
        """What the policy reads next; neighbouring results are one message."""
        dialect = dialect_named(self.dialect)
        said: list[ChatMessage] = []
        results: list[str] = []
        for message in messages:
            if message.role != "tool":
                results = []
                text = dialect.write(message) if message.tool_calls else message.content or ""
                said.append({"role": message.role, "content": text})
                continue
            results.append(message.content or "")
            if len(results) > 1:
                said.pop()
            said.append({"role": "user", "content": dialect.show(results)})
        return said

    def reply(self, text: str) -> Message:
        """What the policy wrote."""
        return read_reply(_END.sub("", text), self.dialect)
