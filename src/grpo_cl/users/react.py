"""``react``: the model thinks before it speaks; the agent hears only what is spoken."""

import re

from grpo_cl.types import Message
from grpo_cl.users.part import Part, spoken

MANNER = """\
Before each message think about what the customer knows, what the agent has just said, and what
comes next. Write the thought inside <thought> and </thought>, and after it the message to the
agent, or call a tool. The agent never sees the thought."""

_THOUGHT = re.compile(r"<thought>.*?(?:</thought>|\Z)", re.DOTALL | re.IGNORECASE)
_CLOSING = re.compile(r"\A.*</thought>", re.DOTALL | re.IGNORECASE)


async def think_first(part: Part) -> Message:
    """The message without the thought; one that was never closed leaves nothing to say."""
    completion = await part.draft(manner=MANNER)
    said = without_thought(completion.content)
    return spoken(completion.model_copy(update={"content": said}))


def without_thought(text: str) -> str:
    """What the agent may hear of a reply."""
    return _CLOSING.sub("", _THOUGHT.sub("", text)).strip()
