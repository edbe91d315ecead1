"""How a model writes the user's next message: ``llm``, ``react``, ``verify``, ``reflection``."""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from grpo_cl.llm import ChatSession, Completion, Prompt, ResponseSchema
from grpo_cl.llm.json_replies import parse_json_object
from grpo_cl.llm.prompt import format_transcript
from grpo_cl.types import Message, Record, ToolSchema

REPLY, REWRITE, CHECK, CRITIQUE = "reply", "rewrite", "check", "critique"
"""Recorded purposes of model calls; the first two write the user's message."""

OPENING = "(The support agent is on the line.)"
"""Stands for the agent's first message if the conversation begins with the user's."""

REACT_PROMPT = """\
Before each message think about what the customer knows, what the agent has just said, and what
comes next. Write the thought inside <thought> and </thought>, and after it the message to the
agent, or call a tool. The agent never sees the thought."""

CHECKER = """\
You check the lines of an actor who plays a customer talking to a support agent. You see the actor's
rules and scenario, the conversation so far, and the next line as drafted. A line fits if the
customer would say or do it now: it follows from the scenario and the conversation, invents nothing,
gives away nothing that was not asked for or needed, does not speak for the agent, and ends the
conversation only when everything is settled. Style does not matter.

Answer with a JSON object: {"fits": true or false, "problem": "what is wrong, in one sentence"}."""

CHECK_SCHEMA = ResponseSchema(
    CHECK,
    {
        "type": "object",
        "properties": {"fits": {"type": "boolean"}, "problem": {"type": "string"}},
        "required": ["fits", "problem"],
        "additionalProperties": False,
    },
)

KEEP = "KEEP"
"""The critique of a draft that needs no change."""

CRITIC = f"""\
You coach an actor who plays a customer talking to a support agent. You see the actor's rules and
scenario, the conversation so far, and the next line as drafted. Say in at most three sentences what
the customer of this scenario would do differently: facts that do not follow, things said too early,
too late or not at all, words that belong to the agent, an end too soon or too late. If the line is
good as it is, answer {KEEP} and nothing else."""

_THOUGHT = re.compile(r"<thought>.*?(?:</thought>|\Z)", re.DOTALL | re.IGNORECASE)
_CLOSING_TAG = re.compile(r"\A.*</thought>", re.DOTALL | re.IGNORECASE)


class UserTurn(NamedTuple):
    """The input of a strategy for one message of the user."""

    system: str
    """Guidelines and scenario."""
    tools: Sequence[ToolSchema]
    messages: Sequence[Message]
    """The messages that are visible to the user."""
    session: ChatSession
    notes: tuple[str, ...] = ()
    """Why earlier drafts of this message were rejected."""
    checks: int = 1
    """How often ``verify`` may reject a draft."""

    def with_note(self, note: str) -> "UserTurn":
        """The turn with one more note."""
        return self._replace(notes=(*self.notes, note))

    async def draft(self, *, instructions: str = "", purpose: str = REPLY) -> Completion:
        """The model's message as the customer; ``instructions`` are added to the system prompt."""
        messages = [*flip_roles(self.messages), *(_note_message(note) for note in self.notes)]
        system = f"{self.system}\n\n{instructions}".rstrip()
        return await self.session.ask(Prompt(system, messages, self.tools), purpose=purpose)


Strategy = Callable[[UserTurn], Awaitable[Message]]


async def write_message(turn: UserTurn) -> Message:
    """``llm``: one model call."""
    return to_user_message(await turn.draft())


async def write_after_thought(turn: UserTurn) -> Message:
    """``react``: the model writes a thought first, which is removed from the message."""
    completion = await turn.draft(instructions=REACT_PROMPT)
    content = strip_thought(completion.content)
    return to_user_message(completion.model_copy(update={"content": content}))


async def write_verified(turn: UserTurn) -> Message:
    """``verify``: a draft is checked against the scenario and rewritten up to ``checks`` times."""
    message = to_user_message(await turn.draft())
    for _ in range(turn.checks):
        check = await _check_draft(turn, message)
        if check.fits:
            break
        draft = format_transcript([message])
        turn = turn.with_note(f"your draft {draft!r} does not fit: {check.problem}")
        message = to_user_message(await turn.draft(purpose=REWRITE))
    return message


async def write_reflected(turn: UserTurn) -> Message:
    """``reflection``: a draft, a critique of it, and a rewrite unless the critique is KEEP."""
    draft = to_user_message(await turn.draft())
    prompt = Prompt(CRITIC, [Message(role="user", content=_review_input(turn, draft))])
    critique = (await turn.session.ask(prompt, purpose=CRITIQUE)).content.strip()
    if critique.strip(".!'\"").upper() == KEEP:
        return draft
    note = f"your draft was {format_transcript([draft])!r}. {critique} Write the message anew."
    return to_user_message(await turn.with_note(note).draft(purpose=REWRITE))


STRATEGIES: dict[str, Strategy] = {
    "llm": write_message,
    "react": write_after_thought,
    "reflection": write_reflected,
    "verify": write_verified,
}


def strip_thought(text: str) -> str:
    """The reply without its thought; a thought that is not closed extends to the end."""
    return _CLOSING_TAG.sub("", _THOUGHT.sub("", text)).strip()


def flip_roles(messages: Sequence[Message]) -> list[Message]:
    """The conversation with the user as the assistant of the chat."""
    flipped = [_flip_role(message) for message in messages]
    if not flipped or flipped[0].role == "assistant":
        flipped.insert(0, Message(role="user", content=OPENING))
    return flipped


def _flip_role(message: Message) -> Message:
    if message.role == "assistant":
        return Message(role="user", content=message.content)
    if message.role == "tool":
        return message.model_copy(update={"requestor": "assistant"})
    calls = message.tool_calls and tuple(
        call.model_copy(update={"requestor": "assistant"}) for call in message.tool_calls
    )
    return message.model_copy(update={"role": "assistant", "tool_calls": calls})


def to_user_message(completion: Completion) -> Message:
    """A completion as the user's message; text next to tool calls is dropped."""
    if not completion.tool_calls:
        return Message(role="user", content=completion.content.strip())
    calls = [call.model_copy(update={"requestor": "user"}) for call in completion.tool_calls]
    return Message(role="user", tool_calls=tuple(calls))


def _note_message(note: str) -> Message:
    return Message(role="user", content=f"(A note from the director, not from the agent: {note})")


class DraftCheck(Record):
    """The checker's verdict on a draft."""

    fits: bool
    problem: str = ""


async def _check_draft(turn: UserTurn, draft: Message) -> DraftCheck:
    content = _review_input(turn, draft)
    prompt = Prompt(CHECKER, [Message(role="user", content=content)], (), CHECK_SCHEMA)
    return await turn.session.ask_parsed(prompt, _parse_check, purpose=CHECK)


def _parse_check(text: str) -> DraftCheck:
    return DraftCheck.model_validate(parse_json_object(text))


def _review_input(turn: UserTurn, draft: Message) -> str:
    conversation = format_transcript(turn.messages)
    return (
        f"<actor>\n{turn.system}\n</actor>\n\n<conversation>\n{conversation}\n</conversation>\n\n"
        f"<draft>\n{format_transcript([draft])}\n</draft>"
    )
