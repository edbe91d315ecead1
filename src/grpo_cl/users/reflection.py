"""``reflection``: a draft, a critique of it, and the message written anew in its light."""

from grpo_cl.models import Prompt
from grpo_cl.models.script import as_script
from grpo_cl.types import Message
from grpo_cl.users.part import REWRITE, Part, spoken
from grpo_cl.users.verify import scene

KEEP = "KEEP"
"""A critique that says only this has nothing to say."""

CRITIC = f"""\
You coach an actor who plays a customer talking to a support agent. You see the actor's rules and
scenario, the conversation so far, and the next line as drafted. Say in at most three sentences what
the customer of this scenario would do differently: facts that do not follow, things said too early,
too late or not at all, words that belong to the agent, an end too soon or too late. If the line is
good as it is, answer {KEEP} and nothing else."""


async def write_reflected(part: Part) -> Message:
    """The message after one round of criticism."""
    draft = spoken(await part.draft())
    content = scene(part.system, part.messages, draft)
    prompt = Prompt(CRITIC, [Message(role="user", content=content)])
    critique = (await part.voice.ask(prompt, purpose="critique")).content.strip()
    if critique.strip(".!'\"").upper() == KEEP:
        return draft
    note = f"your draft was {as_script([draft])!r}. {critique} Write the message anew."
    return spoken(await part.with_note(note).draft(purpose=REWRITE))
