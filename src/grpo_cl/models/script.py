"""A conversation as lines to be read by somebody who is not in it."""

import json
from collections.abc import Sequence

from grpo_cl.types import Message

_NAMES = {"assistant": "Agent", "user": "Customer", "tool": "Tool", "system": "System"}


def as_script(messages: Sequence[Message]) -> str:
    """Who said what, who called which tool, and what it answered."""
    return "\n".join(f"{_NAMES[message.role]}: {_line(message)}" for message in messages)


def _line(message: Message) -> str:
    calls = [f"[calls {c.name}({json.dumps(c.arguments)})]" for c in message.tool_calls or ()]
    return " ".join(part for part in (message.content, *calls) if part)
