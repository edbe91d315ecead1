"""``verify``: a draft is held against the scenario, and written again while it does not fit."""

from collections.abc import Sequence

from grpo_cl.models import Form, Prompt, Voice
from grpo_cl.models.reading import read_object
from grpo_cl.models.script import as_script
from grpo_cl.types import Message, Record
from grpo_cl.users.part import REWRITE, Part, spoken

CHECK = "check"

CHECKER = """\
You check the lines of an actor who plays a customer talking to a support agent. You see the actor's
rules and scenario, the conversation so far, and the next line as drafted. A line fits if the
customer would say or do it now: it follows from the scenario and the conversation, invents nothing,
gives away nothing that was not asked for or needed, does not speak for the agent, and ends the
conversation only when everything is settled. Style does not matter.

Answer with a JSON object: {"fits": true or false, "problem": "what is wrong, in one sentence"}."""

FORM = Form(
    CHECK,
    {
        "type": "object",
        "properties": {"fits": {"type": "boolean"}, "problem": {"type": "string"}},
        "required": ["fits", "problem"],
        "additionalProperties": False,
    },
)


class Check(Record):
    """What a checker thinks of a draft."""

    fits: bool
    problem: str = ""


async def write_verified(part: Part) -> Message:
    """A draft that passed, or the last one there was patience for."""
    message = spoken(await part.draft())
    for _ in range(part.checks):
        check = await check_draft(part.voice, part.system, part.messages, message)
        if check.fits:
            break
        part = part.with_note(f"your draft {as_script([message])!r} does not fit: {check.problem}")
        message = spoken(await part.draft(purpose=REWRITE))
    return message


async def check_draft(
    voice: Voice, system: str, messages: Sequence[Message], draft: Message
) -> Check:
    """Whether the draft fits; a checker that cannot be understood is asked once more."""
    prompt = Prompt(
        CHECKER, [Message(role="user", content=scene(system, messages, draft))], (), FORM
    )
    return await voice.read(prompt, _read_check, purpose=CHECK)


def _read_check(text: str) -> Check:
    return Check.model_validate(read_object(text))


def scene(system: str, messages: Sequence[Message], draft: Message) -> str:
    """Everything that somebody needs who looks at a draft from outside."""
    return (
        f"<actor>\n{system}\n</actor>\n\n<conversation>\n{as_script(messages)}\n</conversation>\n\n"
        f"<draft>\n{as_script([draft])}\n</draft>"
    )
