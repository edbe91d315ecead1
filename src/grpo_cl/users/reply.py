"""What a scripted user says to an agent's message."""

from collections.abc import Sequence
from typing import NamedTuple

from grpo_cl.users.consent import YES, decide
from grpo_cl.users.conversation import Conversation
from grpo_cl.users.cues import closes, consent_asks, denies, greets, is_either_or, reports_success
from grpo_cl.users.reactions import triggered
from grpo_cl.users.scenario import Kind, Line, Script
from grpo_cl.users.topics import CHOICE, Answers, answer, questions

UNKNOWN = "I'm sorry, I do not know"
NO_PREFERENCE = "I have no preference, please choose what fits best."
_REMAINING = "What else I can tell you:"
_ACCEPT_DENIAL = "I see. Is there another way to do what I asked for?"


class Reply(NamedTuple):
    """The user's words and what kind of words they are."""

    text: str
    is_answer: bool = True
    """Responds to a question or a refusal of the agent."""
    is_unknown: bool = False
    """Says only that the user does not know."""
    is_parting: bool = False
    """Nothing is left to say: the user may leave."""


def compose(script: Script, conversation: Conversation) -> Reply:
    """The reply to the agent's latest message."""
    reaction = _react(script, conversation)
    answered = _answer(script, conversation, reaction)
    if answered.text:
        return _with_the_rest(script, conversation, answered)
    text = conversation.agent
    if closes(text) or reports_success(text):
        return _part(script, conversation)
    if greets(text):
        return Reply(script.opening)
    if denies(text) and not conversation.has_said(_ACCEPT_DENIAL):
        return Reply(_ACCEPT_DENIAL)
    if _asks(text):
        return Reply(f"{UNKNOWN} that.", is_unknown=True)
    return Reply(_next_wish(script, conversation) or "Okay, please go ahead.", is_answer=False)


def _react(script: Script, conversation: Conversation) -> Line | None:
    held = script.of_kind(Kind.CONFIRM, Kind.ASKED, Kind.DENIED, Kind.TOLD)
    fresh = [line for line in held if not conversation.has_said(line.text)]
    return triggered(fresh, conversation.agent)


def _answer(script: Script, conversation: Conversation, reaction: Line | None) -> Reply:
    text = conversation.agent
    words = [reaction.text] if reaction else []
    consents = consent_asks(text)
    if consents and reaction is None:
        words.append(_consent(script, conversation, consents))
    asks = _asks(text)
    settled = reaction.condition if reaction else ""
    answers = answer(asks, _answer_lines(script, conversation), settled=settled)
    words += [known for known in answers.known if known not in " ".join(words)]
    choices = [] if reaction else _choices(script, conversation, asks, answers)
    words += [choice for choice in choices if choice not in " ".join(words)]
    unknown = [] if NO_PREFERENCE in words else _not_known(answers)
    return Reply(" ".join([*words, *unknown]), is_unknown=not words and bool(unknown))


def _asks(text: str) -> list[str]:
    consents = consent_asks(text)
    return [ask for ask in questions(text) if ask not in consents and not closes(ask)]


def _answer_lines(script: Script, conversation: Conversation) -> list[Line]:
    """What may be told on request; a reaction, once made, is a fact like any other."""
    reactions = script.of_kind(Kind.ASKED, Kind.CONFIRM)
    made = [Line(Kind.FACT, line.text) for line in reactions if conversation.has_said(line.text)]
    return [*script.of_kind(Kind.FACT, Kind.WISH, Kind.PREFERENCE), *made]


def _consent(script: Script, conversation: Conversation, asks: Sequence[str]) -> str:
    decisions = [decide(ask, script.lines) for ask in asks]
    refusal = next((decision for decision in decisions if decision != YES), None)
    if refusal:
        return refusal
    notes = _unsaid(script, conversation, Kind.PREFERENCE)
    return f"{YES} Please note: {' '.join(notes)}" if notes else YES


def _choices(
    script: Script, conversation: Conversation, asks: Sequence[str], answers: Answers
) -> list[str]:
    """What the user would like where the agent leaves it to them."""
    is_open = any(CHOICE.search(ask) for ask in asks)
    wishes = _unsaid(script, conversation, Kind.PREFERENCE) if is_open else []
    has_choice = is_open or any(is_either_or(ask) for ask in asks)
    is_undecided = has_choice and not answers.known and (bool(answers.unknown) or not wishes)
    return [*wishes, NO_PREFERENCE] if is_undecided else wishes


def _not_known(answers: Answers) -> list[str]:
    return [f"{UNKNOWN} {' or '.join(answers.unknown)}."] if answers.unknown else []


def _unsaid(script: Script, conversation: Conversation, *kinds: Kind) -> list[str]:
    return [line.text for line in script.of_kind(*kinds) if not conversation.has_said(line.text)]


def _next_wish(script: Script, conversation: Conversation) -> str:
    return next(iter(_unsaid(script, conversation, Kind.WISH, Kind.LATER)), "")


def _part(script: Script, conversation: Conversation) -> Reply:
    wish = _next_wish(script, conversation)
    if not wish:
        return Reply("", is_answer=False, is_parting=True)
    return Reply(f"Thank you. There is one more thing. {wish}", is_answer=False)


def _with_the_rest(script: Script, conversation: Conversation, reply: Reply) -> Reply:
    """A question that comes back is answered again, together with everything not yet said."""
    is_new = all(exchange.user != reply.text for exchange in conversation.past)
    if is_new or reply.text == YES:
        return reply
    rest = _unsaid(script, conversation, Kind.FACT, Kind.PREFERENCE, Kind.WISH)
    if not rest:
        return reply
    return Reply(f"{reply.text} {_REMAINING} {' '.join(rest)}")
