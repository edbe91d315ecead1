"""Rule-based user simulator: each message follows from the scenario and the conversation."""

import re
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from typing_extensions import override

from grpo_cl.types import Message, Task, ToolCall, ToolSchema, number_calls
from grpo_cl.users.base import OUT_OF_SCOPE, STOP, TRANSFER, USER_CALL_PREFIX, User
from grpo_cl.users.scripted.conversation import Conversation, parse_conversation, rewind
from grpo_cl.users.scripted.dialogue_acts import announces_transfer, is_closing, reports_success
from grpo_cl.users.scripted.instructions import asks_if_resolved, parse_instructions
from grpo_cl.users.scripted.reply import UNKNOWN, UserReply, compose_reply
from grpo_cl.users.scripted.scenario import LineKind, Script, parse_scenario
from grpo_cl.users.scripted.sentences import split_sentences
from grpo_cl.users.scripted.steps import (
    CallResult,
    CallTool,
    Step,
    already_set,
    is_payment,
    next_call,
    requested_results,
)
from grpo_cl.users.scripted.tool_mentions import find_tool_mentions

MAX_UNPRODUCTIVE = 3
"""Unproductive exchanges in a row after which the user gives up."""

MAX_COMPLAINTS = 2
"""How often the user reports an unresolved problem before ending the conversation."""

NOT_RESOLVED = "It is still not resolved."

_THANKS = "Thank you, that is all I needed."
_ASK_REST = "Thank you. Is everything I asked for taken care of now?"


class Resolution(NamedTuple):
    """How the user checks that the problem is resolved."""

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
    """Why the user calls tools before the next text."""

    OPEN = "the scenario says so at the start"
    INSTRUCTIONS = "the agent asked for it"
    END = "to check the result before ending the conversation"
    NONE = "no tools are called"


class Plan(NamedTuple):
    """The steps before the user's next text."""

    purpose: Purpose
    steps: tuple[Step, ...] = ()
    other_text: str = ""
    """The agent's sentences that are no instructions."""


class ScriptedUser(User):
    """Deterministic user without a model: the same messages get the same answer."""

    def __init__(self, task: Task, user_tools: Sequence[ToolSchema]) -> None:
        self._script: Script = parse_scenario(task)
        self._tools = tuple(user_tools)
        self._tool_names = frozenset(str(tool["function"]["name"]) for tool in user_tools)
        self._resolution = _find_resolution(self._script.instructions, self._tool_names)
        refusals = (line.text for line in self._script.lines if _NO_PAYMENT.search(line.text))
        self._payment_refusal = next(refusals, "")

    @override
    async def respond(self, messages: Sequence[Message]) -> Message:
        conversation = parse_conversation(messages)
        plan = self._plan(conversation)
        call = next_call(plan.steps, conversation.results, self._tool_names)
        if call is not None:
            return _call_message(call, conversation.num_calls)
        return Message(role="user", content=self._text(conversation, plan))

    def _plan(self, conversation: Conversation) -> Plan:
        text = conversation.agent_text
        if announces_transfer(text):
            return Plan(Purpose.NONE)
        if not conversation.has_said(self._script.opening):
            return Plan(Purpose.OPEN, self._scenario_steps(at_end=False))
        instructions = parse_instructions(text, self._tools)
        if instructions.steps:
            steps = instructions.steps
            if self._payment_refusal:
                steps = tuple(step for step in steps if not is_payment(step))
            return Plan(Purpose.INSTRUCTIONS, steps, instructions.other_text)
        if self._resolution and asks_if_resolved(text) and not is_closing(text):
            return Plan(Purpose.INSTRUCTIONS, (CallTool(self._resolution.tool),))
        if not self._reply(conversation).is_final:
            return Plan(Purpose.NONE)
        check = (CallTool(self._resolution.tool),) if self._resolution else ()
        return Plan(Purpose.END, (*self._scenario_steps(at_end=True), *check))

    def _text(self, conversation: Conversation, plan: Plan) -> str:
        if announces_transfer(conversation.agent_text):
            return f"Okay, thank you. {TRANSFER}"
        if plan.purpose is Purpose.OPEN:
            return self._script.opening
        if plan.purpose is Purpose.INSTRUCTIONS:
            return self._report_results(conversation, plan)
        if plan.purpose is Purpose.END:
            return self._end(conversation)
        if self._is_stuck(conversation):
            return f"I am afraid we are not getting anywhere. {OUT_OF_SCOPE}"
        return self._reply(conversation).text

    def _reply(self, conversation: Conversation) -> UserReply:
        return compose_reply(self._script, conversation)

    def _report_results(self, conversation: Conversation, plan: Plan) -> str:
        """The tool results, and the answers to the agent's other questions."""
        reported = requested_results(plan.steps, conversation.results)
        findings = [*already_set(plan.steps, conversation.results), *map(_report_result, reported)]
        answers: list[str] = []
        if plan.other_text:
            reply = self._reply(conversation._replace(agent_text=plan.other_text))
            answers = [reply.text] if reply.is_answer and not reply.is_unknown else []
        excuse = "" if findings else self._payment_refusal or "I could not do that."
        return "\n".join(filter(None, [*findings, excuse, *answers]))

    def _end(self, conversation: Conversation) -> str:
        if self._resolution and not self._is_resolved(conversation.results):
            last = conversation.results[-1].content if conversation.results else ""
            if not is_closing(conversation.agent_text):
                return f"I checked: {last}"
            if conversation.user_text.count(NOT_RESOLVED) < MAX_COMPLAINTS:
                return f"{NOT_RESOLVED} {last}".rstrip()
        if self._resolution or is_closing(conversation.agent_text) or self._num_requests() < 2:
            return f"{_THANKS} {STOP}"
        return f"{_THANKS} {STOP}" if conversation.has_said(_ASK_REST) else _ASK_REST

    def _num_requests(self) -> int:
        return len(self._script.of_kind(LineKind.REQUEST))

    def _is_resolved(self, results: Sequence[CallResult]) -> bool:
        resolution = self._resolution
        return resolution is None or any(
            resolution.sign.search(result.content)
            for result in results
            if result.call.name == resolution.tool
        )

    def _is_stuck(self, conversation: Conversation) -> bool:
        """Whether this exchange and the ones just before it are all unproductive."""
        unproductive = self._is_unproductive(conversation)
        count = len(conversation.exchanges)
        for index in range(count - 1, count - MAX_UNPRODUCTIVE, -1):
            unproductive = (
                unproductive and index >= 0 and self._is_unproductive(rewind(conversation, index))
            )
        return unproductive

    def _is_unproductive(self, conversation: Conversation) -> bool:
        text = conversation.agent_text
        if is_closing(text) or reports_success(text) or parse_instructions(text, self._tools).steps:
            return False
        return conversation.is_repeat or self._reply(conversation).text.startswith(UNKNOWN)

    def _scenario_steps(self, *, at_end: bool) -> tuple[Step, ...]:
        """Tool calls that the scenario prescribes, at the start or at the end."""
        return tuple(
            mention.step
            for sentence in split_sentences(self._script.instructions)
            if re.search(r"\buse (?:the )?\w+_\w+", sentence)
            and bool(re.match(r"(?:after|once|when)\b", sentence, re.IGNORECASE)) is at_end
            for mention in find_tool_mentions(sentence, self._tools)
        )


def _find_resolution(instructions: str, tools: frozenset[str]) -> Resolution | None:
    for pattern, resolution in _RESOLUTIONS:
        if resolution.tool in tools and pattern.search(instructions):
            return resolution
    return None


def _call_message(step: CallTool, num_calls: int) -> Message:
    call = ToolCall(name=step.name, arguments=dict(step.arguments), requestor="user")
    return Message(role="user", tool_calls=number_calls([call], num_calls, USER_CALL_PREFIX))


def _report_result(result: CallResult) -> str:
    return result.content or f"I used {result.call.name.replace('_', ' ')}; nothing came back."
