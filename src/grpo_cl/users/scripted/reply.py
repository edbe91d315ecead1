"""The scripted user's text reply to an agent's message."""

from collections.abc import Sequence
from typing import NamedTuple

from grpo_cl.users.scripted.conversation import Conversation
from grpo_cl.users.scripted.dialogue_acts import (
    consent_questions,
    is_closing,
    is_either_or,
    is_greeting,
    is_refusal,
    reports_success,
)
from grpo_cl.users.scripted.reactions import YES, answer_consent, first_triggered
from grpo_cl.users.scripted.scenario import LineKind, Script, ScriptLine
from grpo_cl.users.scripted.topics import OPEN_CHOICE, Answers, answer_questions, find_questions

UNKNOWN = "I'm sorry, I do not know"
NO_PREFERENCE = "I have no preference, please choose what fits best."
_REMAINING = "What else I can tell you:"
_ASK_ALTERNATIVE = "I see. Is there another way to do what I asked for?"


class UserReply(NamedTuple):
    """A text of the user and what it does."""

    text: str
    is_answer: bool = True
    """Whether it answers a question or a refusal of the agent."""
    is_unknown: bool = False
    """Whether it only says that the user does not know."""
    is_final: bool = False
    """Whether nothing is left to say, so that the user may end the conversation."""


def compose_reply(script: Script, conversation: Conversation) -> UserReply:
    """The reply to the agent's latest message."""
    reaction = _find_reaction(script, conversation)
    answered = _answer(script, conversation, reaction)
    if answered.text:
        return _with_unsaid_facts(script, conversation, answered)
    text = conversation.agent_text
    if is_closing(text) or reports_success(text):
        return _finish(script, conversation)
    if is_greeting(text):
        return UserReply(script.opening)
    if is_refusal(text) and not conversation.has_said(_ASK_ALTERNATIVE):
        return UserReply(_ASK_ALTERNATIVE)
    if _open_questions(text):
        return UserReply(f"{UNKNOWN} that.", is_unknown=True)
    return UserReply(
        _next_request(script, conversation) or "Okay, please go ahead.", is_answer=False
    )


def _find_reaction(script: Script, conversation: Conversation) -> ScriptLine | None:
    conditional = script.of_kind(
        LineKind.ON_CONSENT_QUESTION,
        LineKind.ON_QUESTION,
        LineKind.ON_REFUSAL,
        LineKind.ON_STATEMENT,
    )
    unsaid = [line for line in conditional if not conversation.has_said(line.text)]
    return first_triggered(unsaid, conversation.agent_text)


def _answer(script: Script, conversation: Conversation, reaction: ScriptLine | None) -> UserReply:
    text = conversation.agent_text
    parts = [reaction.text] if reaction else []
    consents = consent_questions(text)
    if consents and reaction is None:
        parts.append(_consent(script, conversation, consents))
    questions = _open_questions(text)
    answered = reaction.condition if reaction else ""
    answers = answer_questions(questions, _answer_lines(script, conversation), answered=answered)
    parts += [known for known in answers.known if known not in " ".join(parts)]
    choices = [] if reaction else _choices(script, conversation, questions, answers)
    parts += [choice for choice in choices if choice not in " ".join(parts)]
    unknown = [] if NO_PREFERENCE in parts else _not_known(answers)
    return UserReply(" ".join([*parts, *unknown]), is_unknown=not parts and bool(unknown))


def _open_questions(text: str) -> list[str]:
    consents = consent_questions(text)
    return [
        question
        for question in find_questions(text)
        if question not in consents and not is_closing(question)
    ]


def _answer_lines(script: Script, conversation: Conversation) -> list[ScriptLine]:
    """The lines that may answer a question; a conditional line that was said counts as a fact."""
    reactions = script.of_kind(LineKind.ON_QUESTION, LineKind.ON_CONSENT_QUESTION)
    said = [
        ScriptLine(LineKind.FACT, line.text)
        for line in reactions
        if conversation.has_said(line.text)
    ]
    return [*script.of_kind(LineKind.FACT, LineKind.REQUEST, LineKind.PREFERENCE), *said]


def _consent(script: Script, conversation: Conversation, questions: Sequence[str]) -> str:
    decisions = [answer_consent(question, script.lines) for question in questions]
    refusal = next((decision for decision in decisions if decision != YES), None)
    if refusal:
        return refusal
    notes = _unsaid(script, conversation, LineKind.PREFERENCE)
    return f"{YES} Please note: {' '.join(notes)}" if notes else YES


def _choices(
    script: Script, conversation: Conversation, questions: Sequence[str], answers: Answers
) -> list[str]:
    """The preferences that answer an open choice."""
    is_open = any(OPEN_CHOICE.search(question) for question in questions)
    preferences = _unsaid(script, conversation, LineKind.PREFERENCE) if is_open else []
    has_choice = is_open or any(is_either_or(question) for question in questions)
    is_undecided = has_choice and not answers.known and (bool(answers.unknown) or not preferences)
    return [*preferences, NO_PREFERENCE] if is_undecided else preferences


def _not_known(answers: Answers) -> list[str]:
    return [f"{UNKNOWN} {' or '.join(answers.unknown)}."] if answers.unknown else []


def _unsaid(script: Script, conversation: Conversation, *kinds: LineKind) -> list[str]:
    return [line.text for line in script.of_kind(*kinds) if not conversation.has_said(line.text)]


def _next_request(script: Script, conversation: Conversation) -> str:
    return next(iter(_unsaid(script, conversation, LineKind.REQUEST, LineKind.FOLLOW_UP)), "")


def _finish(script: Script, conversation: Conversation) -> UserReply:
    request = _next_request(script, conversation)
    if not request:
        return UserReply("", is_answer=False, is_final=True)
    return UserReply(f"Thank you. There is one more thing. {request}", is_answer=False)


def _with_unsaid_facts(script: Script, conversation: Conversation, reply: UserReply) -> UserReply:
    """The reply to a repeated question, extended by all lines not yet said."""
    is_new = all(exchange.user_text != reply.text for exchange in conversation.exchanges)
    if is_new or reply.text == YES:
        return reply
    unsaid = _unsaid(script, conversation, LineKind.FACT, LineKind.PREFERENCE, LineKind.REQUEST)
    if not unsaid:
        return reply
    return UserReply(f"{reply.text} {_REMAINING} {' '.join(unsaid)}")
