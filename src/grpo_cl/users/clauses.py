"""The grammar of stage directions: conditions, commands, and asides that are never spoken."""

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
_ASIDE = re.compile(
    r"\s*\((?!you\b|which\b)[^()]*\b(?:mention|share|volunteer|provide this|do not tell"
    r"|don't tell)\b[^()]*\)"
    r"|\s*\(you can mention this[^()]*\)",
    re.IGNORECASE,
)
_HUSH = re.compile(r",? but do not reveal (?:it|this) to the agent", re.IGNORECASE)
_SECRET = re.compile(r"\(\s*(?:do not|don't|never) (?:share|tell)\b", re.IGNORECASE)
_HELD = re.compile(
    r"\((?:[^()]*\b)?(?:unless|only provide|only (?:mention|share)|only when|if the agent asks)",
    re.IGNORECASE,
)


_ACTION_VERBS = (
    "cancel return exchange modify change keep get drop book upgrade use refund switch choose "
    "proceed remove add see check go order create transfer"
)
ACTIONS = frozenset(_ACTION_VERBS.split())
"""Verbs that only the agent can carry out: told to do one of these, the user asks for it."""


class Conditional(NamedTuple):
    """A sentence of the form "if this, then that"."""

    condition: str
    consequent: str
    is_fronted: bool = False
    """The first half is only a place or an object put first ("for this order, …")."""


class Command(NamedTuple):
    """A clause that tells the user what to do."""

    adverbs: str
    verb: str
    rest: str


class Aside(NamedTuple):
    """A sentence without its stage directions in parentheses."""

    text: str
    is_secret: bool
    """Must never be said."""
    is_held: bool
    """May be said only when asked for."""
    is_hushed: bool
    """Explains what the user has in mind but does not say."""


def split_condition(sentence: str) -> Conditional | None:
    """The two halves of a sentence with a condition or a phrase put first; None for any other."""
    is_fronted = bool(_FRONTED.match(sentence)) and not _CONDITION.match(sentence)
    if not is_fronted and not _CONDITION.match(sentence):
        return None
    comma = _CONSEQUENT.search(sentence)
    if comma is None:
        return None
    return Conditional(sentence[: comma.start()], sentence[comma.end() :], is_fronted)


def read_command(clause: str) -> Command | None:
    """The verb of an imperative clause; None if the clause has a subject of its own."""
    match = _COMMAND.match(clause)
    if match is None:
        return None
    return Command(match[1].strip(" ,"), match[2].lower(), match[3].strip(" ,"))


def strip_asides(sentence: str) -> Aside:
    """``sentence`` without remarks to the user about what to reveal, and what they asked for."""
    text = _HUSH.sub("", _ASIDE.sub("", sentence)).replace(" ,", ",").strip()
    is_secret = bool(_SECRET.search(sentence))
    return Aside(text, is_secret, bool(_HELD.search(sentence)), bool(_HUSH.search(sentence)))
