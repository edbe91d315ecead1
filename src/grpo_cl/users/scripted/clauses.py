"""Parser of scenario sentences: conditions, imperatives, disclosure and behavior notes."""

import re
from typing import NamedTuple

_ADVERB = (
    r"(?:(?:and|but|only|just|also|first|finally|lastly|then|suddenly|abruptly|instead|please"
    r"|immediately|now|"
    r"persistently|otherwise|simply),? )*"
)
_VERBS = (
    r"be|insist|tell|ask|mention|say|make|try|use|do|don't|accept|admit|choose|cancel|return"
    r"|exchange|"
    r"provide|respond|reply|drop|book|modify|keep|get|thank|move|proceed|see|check|confirm"
    r"|upgrade|never|"
    r"sound|start|deflect|pretend|demand|request|create|continue|transfer|refund|change|forget|go"
    r"|let|"
    r"state|inquire|complain|give|add|stop|end|remove|find|express|follow|always|reveal|volunteer"
    r"|stay|"
    r"apply|explain|close|switch|split|list|wait|swear|agree|propose|carry|order|no action|consider"
)
_COMMAND = re.compile(rf"^({_ADVERB})({_VERBS})\b(.*)$", re.IGNORECASE | re.DOTALL)
_CONDITION = re.compile(
    r"^(?:but |and |also,? )?(?:(?:if|even if|when|whenever|once|until|only after|after|before"
    r"|otherwise|"
    r"halfway|in the middle|at the end of the conversation)\b)",
    re.IGNORECASE,
)
_FRONTED = re.compile(r"^(?:for|from|in|at|with|due to)\b", re.IGNORECASE)
_CONSEQUENT = re.compile(
    rf",\s+(?={_ADVERB}(?:(?:{_VERBS}|you|your|it is|it's|no)\b|you['’]))", re.IGNORECASE
)
_DISCLOSURE_NOTE = re.compile(
    r"\s*\((?!you\b|which\b)[^()]*\b(?:mention|share|volunteer|provide this|do not tell"
    r"|don't tell)\b[^()]*\)"
    r"|\s*\(you can mention this[^()]*\)",
    re.IGNORECASE,
)
_UNSPOKEN_NOTE = re.compile(r",? but do not reveal (?:it|this) to the agent", re.IGNORECASE)
_SECRET_NOTE = re.compile(r"\(\s*(?:do not|don't|never) (?:share|tell)\b", re.IGNORECASE)
_ON_REQUEST_NOTE = re.compile(
    r"\((?:[^()]*\b)?(?:unless|only provide|only (?:mention|share)|only when|if the agent asks)",
    re.IGNORECASE,
)

_BEHAVIORS = (
    r"playing the role|never respond as|on the line with|meant to test|trying to make the agent",
    r"behavior guidelines|have access to a tool|if you are unsure|for example:|express mild",
    r"always ground|never make up|might need to perform|whatever you say about your phone",
    r"^do on your phone|^continue the conversation|^(?:first, )?use the \w+_\w+ tool",
    r"consider the issue resolved|matter is settled|^you are satisfied",
    r"as you are interacting|intended task|get the agent to be|make the agent laugh|coercion",
    r"asserting it|maximum of|make up reasons|upfront|in every (?:single )?message",
    r"each of your replies|as confusing|reactive to the agent|your approach|english is not",
    r"(?:dump|reveal) (?:much|all)|insert(?:s)? |one thing at a time|one wish after the other",
    r"everything you want at once|like to (?:say|talk|do|chat|guess)\b(?! with)"
    r"|answer (?:only )?what",
    r"clear yes|say yes (?:when|to)|confirm every|complain once|about the weather|in a hurry",
)
_TRAITS = (
    r"detail-oriented|private|mysterious|into gaming|sad|polite|funny|chill|rude|anxious|young",
    r"brief|lonely|impatient|emotional|outgoing|optimistic|insecure|direct|curious|messy|shy",
    r"rigid|dependent|confident|cautious|pessimistic|busy[,.]|happy (?:but)|happy,|logical",
    r"organized|calm|upset|persistent|extremely|distraught|patient|creative|independent|relaxing",
    r"interesting|stressed|friendly|precise|suspicious|cheerful|tired|formal|nervous|annoyed",
    r"not at ease",
)
_DEGREES = r"(?:(?:now|very|extremely|a bit|also|in debt and|an?|quite) )*(?:\w+, )*"

_BEHAVIOR = re.compile("|".join(_BEHAVIORS), re.IGNORECASE)
_TRAIT = re.compile(rf"you(?:'re| are) {_DEGREES}(?:{'|'.join(_TRAITS)})\b", re.IGNORECASE)
_ALSO_REQUESTS = re.compile(r"\b(?:want to know|insist on)\b", re.IGNORECASE)

_ACTION_VERBS = (
    "cancel return exchange modify change keep get drop book upgrade use refund switch choose "
    "proceed remove add see check go order create transfer"
)
AGENT_ACTIONS = frozenset(_ACTION_VERBS.split())
"""Verbs of actions that only the agent can perform; the user asks the agent for them."""


class Conditional(NamedTuple):
    """A sentence of the form "if this, then that"."""

    condition: str
    consequent: str
    is_fronted: bool = False
    """Whether the first half is no condition but a fronted phrase ("for this order, …")."""


class Command(NamedTuple):
    """An imperative clause."""

    adverbs: str
    verb: str
    rest: str


class StrippedSentence(NamedTuple):
    """A sentence without its notes on what to disclose."""

    text: str
    is_secret: bool
    """Whether the user must never say it."""
    is_on_request: bool
    """Whether the user says it only if asked."""
    is_unspoken: bool
    """Whether it is a motive that the user does not mention."""


def split_condition(sentence: str) -> Conditional | None:
    """Condition or fronted phrase, and consequent; None if the sentence begins with neither."""
    is_fronted = bool(_FRONTED.match(sentence)) and not _CONDITION.match(sentence)
    if not is_fronted and not _CONDITION.match(sentence):
        return None
    comma = _CONSEQUENT.search(sentence)
    if comma is None:
        return None
    return Conditional(sentence[: comma.start()], sentence[comma.end() :], is_fronted)


def parse_command(clause: str) -> Command | None:
    """The parts of an imperative clause; None if the clause has a subject."""
    match = _COMMAND.match(clause)
    if match is None:
        return None
    return Command(match[1].strip(" ,"), match[2].lower(), match[3].strip(" ,"))


def strip_disclosure_notes(sentence: str) -> StrippedSentence:
    """``sentence`` without its disclosure notes, and what the notes require."""
    text = _UNSPOKEN_NOTE.sub("", _DISCLOSURE_NOTE.sub("", sentence)).replace(" ,", ",").strip()
    is_secret = bool(_SECRET_NOTE.search(sentence))
    return StrippedSentence(
        text,
        is_secret,
        bool(_ON_REQUEST_NOTE.search(sentence)),
        bool(_UNSPOKEN_NOTE.search(sentence)),
    )


def is_behavior_instruction(sentence: str) -> bool:
    """Whether ``sentence`` says how the user behaves and not what the user says."""
    if _BEHAVIOR.search(sentence):
        return True
    return bool(_TRAIT.match(sentence)) and not _ALSO_REQUESTS.search(sentence)
