"""A task's scenario read as a script: what to say first, on request, in reaction, and later."""

import re
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from grpo_cl.types import StructuredInstructions, Task
from grpo_cl.users.clauses import Conditional, read_command, split_condition, strip_asides
from grpo_cl.users.manners import is_manner
from grpo_cl.users.sentences import any_of, content_words, split_sentences
from grpo_cl.users.speech import ACCEPT, join, speak


class Kind(Enum):
    """When a line is said."""

    FACT = "when it is asked for"
    WISH = "at the beginning, or when the agent offers further help"
    PREFERENCE = "when the agent offers a choice or asks for consent"
    LATER = "once the agent is done with the rest"
    CONFIRM = "instead of consent, once"
    ASKED = "when its condition is asked about"
    DENIED = "when the agent cannot do something"
    TOLD = "when the agent says what its condition says"
    MANNER = "never"


class Line(NamedTuple):
    """One thing the user may say."""

    kind: Kind
    text: str
    condition: str = ""
    """Of a reaction: what sets it off."""


class Script(NamedTuple):
    """Everything a scripted user knows."""

    opening: str
    lines: tuple[Line, ...]
    directions: str
    """The scenario's own words, for what is not speech: tools to use, signs of success."""

    def of_kind(self, *kinds: Kind) -> list[Line]:
        """The lines of these kinds, in the order of the scenario."""
        return [line for line in self.lines if line.kind in kinds]


_MID_CONDITION = re.compile(r",? (?:but|and) (?=(?:if|when) the agent\b(?! can\b))")
_REACTION = re.compile(r"(?<!with the )\bagent\b|\basked\b", re.IGNORECASE)
_CONFIRM = re.compile(r"\bconfirm(?:s|ed|ation)?\b", re.IGNORECASE)
_ASKED = re.compile(r"\bask(?:s|ed)?\b|\bagent wants\b", re.IGNORECASE)
_DENIED = any_of(
    r"\bnot possible",
    r"\bimpossible",
    r"\b(?:cannot|can't)\b",
    r"\bnot (?:available|allow|agree|find)",
    r"n't (?:allow|work|agree|find)",
    r"\b(?:denies|refuses?)\b",
    r"^if not$",
    r"\bno way\b",
    r"\bthat fails\b",
    r"\bany issues\b",
)
_SEQUEL = any_of(
    r"^(?:only after|after|once|halfway|in the middle|at the end)",
    r"agent does(?:n't| not)(?! allow| agree)",
)
_TOOL_USE = re.compile(r"\buse (?:the )?\w+_\w+")
_WISH = re.compile(
    r"\b(?:want|wish|would like|'d like|need|wonder|looking (?:for|to)|insist|please|contacting)\b",
    re.IGNORECASE,
)
_NOT_A_WISH = re.compile(
    r"\b(?:do|does|did|would) not (?:\w+ )?(?:want|need|wish)|don't (?:want|need)", re.IGNORECASE
)
_ACTS = (
    "cancel change add remove book return exchange modify upgrade downgrade receive check talk "
    "ask mark"
)
_SEPARATE = any_of(
    r"\b(?:also|then|now|finally|lastly|additionally|insist|sums?)\b",
    r"\bto know\b",
    r"\bwould like to ask\b",
    r"\bwant to get\b(?! this| things)",
    rf"\bwant to (?:first )?(?:{'|'.join(_ACTS.split())})\b",
)
"""Signs of a request of its own, as opposed to a wish about how it is met."""
_CONSENTS = frozenset({"Yes.", "I agree.", "I agree to it."})
"""Reactions that every scripted user has anyway."""
_SHORT = 6
"""Sentences up to which a scenario without headings is told whole."""


def read_script(task: Task) -> Script:
    """The script of a task, from its scenario alone."""
    return _read(task.user_scenario.instructions)  # pyright: ignore[reportArgumentType]  # frozen


@lru_cache(maxsize=4096)  # the episodes of a group share one
def _read(scenario: StructuredInstructions | str) -> Script:
    if isinstance(scenario, str):
        return _plain_script(scenario)
    return _structured_script(scenario)


def _structured_script(scenario: StructuredInstructions) -> Script:
    known = [_fact(sentence) for sentence in split_sentences(scenario.known_info or "")]
    unknown = [_fact(sentence) for sentence in split_sentences(scenario.unknown_info or "")]
    reason = [read_line(sentence) for sentence in _directions(scenario.reason_for_call)]
    rest = [read_line(sentence) for sentence in _directions(scenario.task_instructions)]
    first = [line.text for line in reason if line.kind in {Kind.FACT, Kind.WISH, Kind.PREFERENCE}]
    lines = tuple(line for line in [*known, *unknown, *reason, *rest] if line.text)
    opening = " ".join(text for text in first if text)
    directions = f"{scenario.reason_for_call}\n{scenario.task_instructions}"
    return Script(opening or _fallback_opening(lines), lines, directions)


def _plain_script(scenario: str) -> Script:
    sentences = _directions(scenario)
    lines = tuple(line for line in map(read_line, sentences) if line.text)
    start = [
        speak(sentence) for sentence in sentences if sentence.lower().startswith("start by saying")
    ]
    speakable = [line for line in lines if line.kind in {Kind.FACT, Kind.WISH, Kind.PREFERENCE}]
    if len(sentences) > _SHORT:
        speakable = [line for line in speakable if line.kind is Kind.WISH]
    opening = start[0] if start else " ".join(line.text for line in speakable)
    return Script(opening or _fallback_opening(lines), lines, scenario)


def _directions(text: str) -> list[str]:
    sentences = split_sentences(text)
    return [part for sentence in sentences for part in _MID_CONDITION.split(sentence)]


def _fallback_opening(lines: tuple[Line, ...]) -> str:
    wishes = [line.text for line in lines if line.kind in {Kind.WISH, Kind.LATER}]
    return wishes[0] if wishes else "Hello, I need some help."


def _fact(sentence: str) -> Line:
    line = read_line(sentence)
    return line if line.kind in {Kind.ASKED, Kind.MANNER} else Line(Kind.FACT, line.text)


def read_line(sentence: str) -> Line:
    """One sentence of a scenario as a line of the script."""
    aside = strip_asides(sentence)
    if aside.is_secret or aside.is_hushed or is_manner(aside.text):
        return Line(Kind.MANNER, "")
    if _TOOL_USE.search(aside.text):
        return Line(Kind.MANNER, "")
    conditional = split_condition(aside.text)
    if conditional is not None and not conditional.is_fronted:
        return _conditional_line(aside.text, conditional)
    text = speak(_fronted(conditional) if conditional else aside.text)
    if not text:
        return Line(Kind.MANNER, "")
    return Line(Kind.FACT if aside.is_held else _kind_of(text), text)


def _fronted(conditional: Conditional) -> str:
    command = read_command(conditional.consequent)
    consequent = speak(conditional.consequent) if command else conditional.consequent
    return join(conditional.condition, consequent)


def _conditional_line(sentence: str, conditional: Conditional) -> Line:
    condition, consequent = conditional.condition, conditional.consequent
    kind = _reaction_kind(condition)
    text = speak(consequent, is_reaction=True)
    if not text or text in _CONSENTS or (kind is None and text == ACCEPT):
        return Line(Kind.MANNER, "")
    if kind is not None:
        return Line(kind, text, condition)
    return Line(
        Kind.PREFERENCE, speak(join(condition, text) if read_command(consequent) else sentence)
    )


def _reaction_kind(condition: str) -> Kind | None:
    if _SEQUEL.search(condition):
        return Kind.LATER
    if not _REACTION.search(condition):
        return Kind.DENIED if _DENIED.search(condition) else None
    if _CONFIRM.search(condition):
        return Kind.CONFIRM
    if _DENIED.search(condition):
        return Kind.DENIED
    if not _ASKED.search(condition):
        return Kind.TOLD
    return Kind.ASKED if content_words(condition) - {"ask"} else Kind.FACT


def _kind_of(text: str) -> Kind:
    if text.startswith("About "):
        return Kind.PREFERENCE
    if _NOT_A_WISH.search(text) and not re.search(r"\balso want\b", text):
        return Kind.PREFERENCE
    if _WISH.search(text):
        return Kind.WISH if _SEPARATE.search(text) or text.startswith("Please") else Kind.PREFERENCE
    return (
        Kind.PREFERENCE
        if re.search(r"\b(?:prefer|willing|only|okay|ok|fine|happy)\b", text)
        else Kind.FACT
    )
