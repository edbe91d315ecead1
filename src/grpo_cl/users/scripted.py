"""A user without a model: all it says and does follows from the scenario and the conversation."""

import re
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from typing_extensions import override

from grpo_cl.domains.base import ToolSchema
from grpo_cl.types import Message, Task, ToolCall
from grpo_cl.users.base import OUT_OF_SCOPE, STOP, TRANSFER, User
from grpo_cl.users.conversation import Conversation, before, read_conversation
from grpo_cl.users.cues import closes, reports_success, transfers
from grpo_cl.users.errands import asks_whether_it_works, read_errand
from grpo_cl.users.mentions import find_mentions
from grpo_cl.users.reply import UNKNOWN, Reply, compose
from grpo_cl.users.scenario import Kind, Script, read_script
from grpo_cl.users.sentences import split_sentences
from grpo_cl.users.steps import (
    Deed,
    Outcome,
    Step,
    Use,
    already,
    is_payment,
    next_deed,
    worth_telling,
)

PATIENCE = 3
"""Fruitless exchanges in a row after which the user gives up."""

COMPLAINTS = 2
"""How often the user says that the trouble is not over before they leave."""

NOT_RESOLVED = "It is still not resolved."

_THANKS = "Thank you, that is all I needed."
_ASK_REST = "Thank you. Is everything I asked for taken care of now?"


class Resolution(NamedTuple):
    """How the user can tell that the trouble is over."""

    tool: str
    sign: re.Pattern[str]


_RESOLUTIONS = (
    (
        re.compile(
            r"speed test (?:returns|says|reports)[^.]*\bexcellent|get excellent internet",
            re.IGNORECASE,
        ),
        Resolution("run_speed_test", re.compile(r"\(excellent\)", re.IGNORECASE)),
    ),
    (
        re.compile(
            r"(?:unable to|successfully) send (?:an )?MMS|can send MMS|MMS messages can be sent"
        ),
        Resolution("can_send_mms", re.compile(r"\bcan send MMS\b")),
    ),
    (
        re.compile(
            r"status bar shows (?:that|a signal)|and shows signal|showing 'No Service'",
            re.IGNORECASE,
        ),
        Resolution(
            "check_status_bar",
            re.compile(r"^(?!.*(?:No Signal|Airplane Mode)).*\bStatus Bar\b", re.DOTALL),
        ),
    ),
)


_NO_PAYMENT = re.compile(r"\brefuse to pay\b|\bnot settle any bill\b|\bturn down every payment\b")


class Purpose(Enum):
    """Why the user reaches for their tools."""

    OPEN = "to have something to report"
    ERRAND = "the agent asked for it"
    LEAVE = "to be sure that all is well"
    NONE = "they do not"


class Plan(NamedTuple):
    """What the user does before they speak."""

    purpose: Purpose
    steps: tuple[Step, ...] = ()
    rest: str = ""
    """Of an errand: what else the agent said."""


class ScriptedUser(User):
    """Deterministic and free; the same messages always get the same answer."""

    def __init__(self, task: Task, user_tools: Sequence[ToolSchema]) -> None:
        self._script: Script = read_script(task)
        self._tools = tuple(user_tools)
        self._names = frozenset(str(tool["function"]["name"]) for tool in user_tools)
        self._resolution = _resolution(self._script.directions, self._names)
        self._unpaid = next((t.text for t in self._script.lines if _NO_PAYMENT.search(t.text)), "")

    @override
    async def respond(self, messages: Sequence[Message]) -> Message:
        conversation = read_conversation(messages)
        plan = self._plan(conversation)
        deed = next_deed(plan.steps, conversation.done, self._names)
        if deed is not None:
            return _call(deed, conversation.call_count)
        return Message(role="user", content=self._speak(conversation, plan))

    def _plan(self, conversation: Conversation) -> Plan:
        text = conversation.agent
        if transfers(text):
            return Plan(Purpose.NONE)
        if not conversation.has_said(self._script.opening):
            return Plan(Purpose.OPEN, self._scripted_steps(is_sequel=False))
        errand = read_errand(text, self._tools)
        if errand.steps:
            willing = [step for step in errand.steps if not (self._unpaid and is_payment(step))]
            return Plan(Purpose.ERRAND, tuple(willing), errand.rest)
        if self._resolution and asks_whether_it_works(text) and not closes(text):
            return Plan(Purpose.ERRAND, (Use(Deed(self._resolution.tool)),))
        if not self._reply(conversation).is_parting:
            return Plan(Purpose.NONE)
        checks = (Use(Deed(self._resolution.tool)),) if self._resolution else ()
        return Plan(Purpose.LEAVE, (*self._scripted_steps(is_sequel=True), *checks))

    def _speak(self, conversation: Conversation, plan: Plan) -> str:
        if transfers(conversation.agent):
            return f"Okay, thank you. {TRANSFER}"
        if plan.purpose is Purpose.OPEN:
            return self._script.opening
        if plan.purpose is Purpose.ERRAND:
            return self._report(conversation, plan)
        if plan.purpose is Purpose.LEAVE:
            return self._leave(conversation)
        if self._is_stuck(conversation):
            return f"I am afraid we are not getting anywhere. {OUT_OF_SCOPE}"
        return self._reply(conversation).text

    def _reply(self, conversation: Conversation) -> Reply:
        return compose(self._script, conversation)

    def _report(self, conversation: Conversation, plan: Plan) -> str:
        """What came of an errand, and answers to whatever else was asked."""
        told = worth_telling(plan.steps, conversation.done)
        findings = [*already(plan.steps, conversation.done), *map(_finding, told)]
        other = self._reply(conversation._replace(agent=plan.rest)) if plan.rest else None
        words = [other.text] if other and other.is_answer and not other.is_unknown else []
        excuse = "" if findings else self._unpaid or "I could not do that."
        return "\n".join(filter(None, [*findings, excuse, *words]))

    def _leave(self, conversation: Conversation) -> str:
        if self._resolution and not self._is_resolved(conversation.done):
            last = conversation.done[-1].result if conversation.done else ""
            if not closes(conversation.agent):
                return f"I checked: {last}"
            if conversation.said.count(NOT_RESOLVED) < COMPLAINTS:
                return f"{NOT_RESOLVED} {last}".rstrip()
        if self._resolution or closes(conversation.agent) or self._wish_count() < 2:
            return f"{_THANKS} {STOP}"
        return f"{_THANKS} {STOP}" if conversation.has_said(_ASK_REST) else _ASK_REST

    def _wish_count(self) -> int:
        return len(self._script.of_kind(Kind.WISH))

    def _is_resolved(self, done: Sequence[Outcome]) -> bool:
        resolution = self._resolution
        return resolution is None or any(
            resolution.sign.search(outcome.result)
            for outcome in done
            if outcome.call.name == resolution.tool
        )

    def _is_stuck(self, conversation: Conversation) -> bool:
        """Whether this exchange and those just before it lead nowhere."""
        fruitless = self._is_fruitless(conversation)
        for index in range(len(conversation.past) - 1, len(conversation.past) - PATIENCE, -1):
            fruitless = fruitless and index >= 0 and self._is_fruitless(before(conversation, index))
        return fruitless

    def _is_fruitless(self, conversation: Conversation) -> bool:
        text = conversation.agent
        if closes(text) or reports_success(text) or read_errand(text, self._tools).steps:
            return False
        return conversation.is_repeat or self._reply(conversation).text.startswith(UNKNOWN)

    def _scripted_steps(self, *, is_sequel: bool) -> tuple[Step, ...]:
        """Tools that the scenario itself tells the user to use, before the call or at its end."""
        return tuple(
            mention.step
            for sentence in split_sentences(self._script.directions)
            if re.search(r"\buse (?:the )?\w+_\w+", sentence)
            and bool(re.match(r"(?:after|once|when)\b", sentence, re.IGNORECASE)) is is_sequel
            for mention in find_mentions(sentence, self._tools)
        )


def _resolution(directions: str, tools: frozenset[str]) -> Resolution | None:
    for pattern, resolution in _RESOLUTIONS:
        if resolution.tool in tools and pattern.search(directions):
            return resolution
    return None


def _call(deed: Deed, count: int) -> Message:
    call = ToolCall(
        id=f"user_call_{count}", name=deed.name, arguments=dict(deed.arguments), requestor="user"
    )
    return Message(role="user", tool_calls=(call,))


def _finding(outcome: Outcome) -> str:
    return outcome.result or f"I used {outcome.call.name.replace('_', ' ')}; nothing came back."
