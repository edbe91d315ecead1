"""``llm``: the model writes the customer's message, and that is it."""

from grpo_cl.types import Message
from grpo_cl.users.part import Part, spoken


async def write_plainly(part: Part) -> Message:
    """The first thing that comes to mind."""
    return spoken(await part.draft())
