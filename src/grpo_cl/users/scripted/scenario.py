"""Parser of a task's scenario into a script: the opening, and lines with their conditions."""

import re
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from grpo_cl.types import StructuredInstructions, Task
from grpo_cl.users.scripted.clauses import (
    Conditional,
    is_behavior_instruction,
    parse_command,
    split_condition,
    strip_disclosure_notes,
)
from grpo_cl.users.scripted.sentences import any_of, content_words, split_sentences
from grpo_cl.users.scripted.utterances import ACCEPT, join_clauses, to_utterance


class LineKind(Enum):
    """The condition under which a line is said."""

    FACT = "when it is asked for"
    REQUEST = "at the beginning, or when the agent offers further help"
    PREFERENCE = "when the agent offers a choice or asks for consent"
    FOLLOW_UP = "after the other requests"
    ON_CONSENT_QUESTION = "once, instead of consent"
    ON_QUESTION = "when the agent asks about its condition"
    ON_REFUSAL = "when the agent refuses something"
    ON_STATEMENT = "when the agent states its condition"
    UNSPOKEN = "never"


class ScriptLine(NamedTuple):
    """One sentence that the user may say."""

    kind: LineKind
    text: str
    condition: str = ""
    """Of a conditional line: the condition in the scenario's words."""


class Script(NamedTuple):
    """The parsed scenario."""

    opening: str
    lines: tuple[ScriptLine, ...]
    instructions: str
    """The scenario's text, which also names tools to use and signs of success."""

    def of_kind(self, *kinds: LineKind) -> list[ScriptLine]:
        """The lines of these kinds, in the order of the scenario."""
        return [line for line in self.lines if line.kind in kinds]


_MID_CONDITION = re.compile(r",? (?:but|and) (?=(?:if|when) the agent\b(?! can\b))")
_REACTION = re.compile(r"(?<!with the )\bagent\b|\basked\b", re.IGNORECASE)
_CONFIRM = re.compile(r"\bconfirm(?:s|ed|ation)?\b", re.IGNORECASE)
_ASKED = re.compile(r"\bask(?:s|ed)?\b|\bagent wants\b", re.IGNORECASE)
_REFUSED = any_of(
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
_AFTERWARDS = any_of(
    r"^(?:only after|after|once|halfway|in the middle|at the end)",
    r"agent does(?:n't| not)(?! allow| agree)",
)
_TOOL_USE = re.compile(r"\buse (?:the )?\w+_\w+")
_REQUEST = re.compile(
    r"\b(?:want|wish|would like|'d like|need|wonder|looking (?:for|to)|insist|please|contacting)\b",
    re.IGNORECASE,
)
_NOT_A_REQUEST = re.compile(
    r"\b(?:do|does|did|would) not (?:\w+ )?(?:want|need|wish)|don't (?:want|need)", re.IGNORECASE
)
_REQUEST_VERBS = (
    "cancel change add remove book return exchange modify upgrade downgrade receive check talk "
    "ask mark"
)
_SEPARATE_REQUEST = any_of(
    r"\b(?:also|then|now|finally|lastly|additionally|insist|sums?)\b",
    r"\bto know\b",
    r"\bwould like to ask\b",
    r"\bwant to get\b(?! this| things)",
    rf"\bwant to (?:first )?(?:{'|'.join(_REQUEST_VERBS.split())})\b",
)
"""Marks a separate request; other wishes are preferences about a request."""
_CONSENTS = frozenset({"Yes.", "I agree.", "I agree to it."})
"""Reactions that every scripted user has by default."""
_MAX_OPENING_SENTENCES = 6
"""A longer scenario without headings is opened with its requests only."""


def parse_scenario(task: Task) -> Script:
    """The script of a task."""
    return _parse(task.user_scenario.instructions)  # pyright: ignore[reportArgumentType]  # frozen


@lru_cache(maxsize=4096)  # shared by the episodes of a group
def _parse(scenario: StructuredInstructions | str) -> Script:
    if isinstance(scenario, str):
        return _plain_script(scenario)
    return _structured_script(scenario)


def _structured_script(scenario: StructuredInstructions) -> Script:
    known = [_fact(sentence) for sentence in split_sentences(scenario.known_info or "")]
    unknown = [_fact(sentence) for sentence in split_sentences(scenario.unknown_info or "")]
    reason = [
        parse_sentence(sentence) for sentence in _split_instructions(scenario.reason_for_call)
    ]
    rest = [
        parse_sentence(sentence) for sentence in _split_instructions(scenario.task_instructions)
    ]
    first = [
        line.text
        for line in reason
        if line.kind in {LineKind.FACT, LineKind.REQUEST, LineKind.PREFERENCE}
    ]
    lines = tuple(line for line in [*known, *unknown, *reason, *rest] if line.text)
    opening = " ".join(text for text in first if text)
    instructions = f"{scenario.reason_for_call}\n{scenario.task_instructions}"
    return Script(opening or _fallback_opening(lines), lines, instructions)


def _plain_script(scenario: str) -> Script:
    sentences = _split_instructions(scenario)
    lines = tuple(line for line in map(parse_sentence, sentences) if line.text)
    start = [
        to_utterance(sentence)
        for sentence in sentences
        if sentence.lower().startswith("start by saying")
    ]
    spoken = [
        line
        for line in lines
        if line.kind in {LineKind.FACT, LineKind.REQUEST, LineKind.PREFERENCE}
    ]
    if len(sentences) > _MAX_OPENING_SENTENCES:
        spoken = [line for line in spoken if line.kind is LineKind.REQUEST]
    opening = start[0] if start else " ".join(line.text for line in spoken)
    return Script(opening or _fallback_opening(lines), lines, scenario)


def _split_instructions(text: str) -> list[str]:
    sentences = split_sentences(text)
    return [part for sentence in sentences for part in _MID_CONDITION.split(sentence)]


def _fallback_opening(lines: tuple[ScriptLine, ...]) -> str:
    requests = [line.text for line in lines if line.kind in {LineKind.REQUEST, LineKind.FOLLOW_UP}]
    return requests[0] if requests else "Hello, I need some help."


def _fact(sentence: str) -> ScriptLine:
    line = parse_sentence(sentence)
    return (
        line
        if line.kind in {LineKind.ON_QUESTION, LineKind.UNSPOKEN}
        else ScriptLine(LineKind.FACT, line.text)
    )


def parse_sentence(sentence: str) -> ScriptLine:
    """One sentence of a scenario as a script line."""
    stripped = strip_disclosure_notes(sentence)
    if stripped.is_secret or stripped.is_unspoken or is_behavior_instruction(stripped.text):
        return ScriptLine(LineKind.UNSPOKEN, "")
    if _TOOL_USE.search(stripped.text):
        return ScriptLine(LineKind.UNSPOKEN, "")
    conditional = split_condition(stripped.text)
    if conditional is not None and not conditional.is_fronted:
        return _conditional_line(stripped.text, conditional)
    text = to_utterance(_fronted(conditional) if conditional else stripped.text)
    if not text:
        return ScriptLine(LineKind.UNSPOKEN, "")
    return ScriptLine(LineKind.FACT if stripped.is_on_request else _kind_of(text), text)


def _fronted(conditional: Conditional) -> str:
    command = parse_command(conditional.consequent)
    consequent = to_utterance(conditional.consequent) if command else conditional.consequent
    return join_clauses(conditional.condition, consequent)


def _conditional_line(sentence: str, conditional: Conditional) -> ScriptLine:
    condition, consequent = conditional.condition, conditional.consequent
    kind = _reaction_kind(condition)
    text = to_utterance(consequent, is_reaction=True)
    if not text or text in _CONSENTS or (kind is None and text == ACCEPT):
        return ScriptLine(LineKind.UNSPOKEN, "")
    if kind is not None:
        return ScriptLine(kind, text, condition)
    return ScriptLine(
        LineKind.PREFERENCE,
        to_utterance(join_clauses(condition, text) if parse_command(consequent) else sentence),
    )


def _reaction_kind(condition: str) -> LineKind | None:
    if _AFTERWARDS.search(condition):
        return LineKind.FOLLOW_UP
    if not _REACTION.search(condition):
        return LineKind.ON_REFUSAL if _REFUSED.search(condition) else None
    if _CONFIRM.search(condition):
        return LineKind.ON_CONSENT_QUESTION
    if _REFUSED.search(condition):
        return LineKind.ON_REFUSAL
    if not _ASKED.search(condition):
        return LineKind.ON_STATEMENT
    return LineKind.ON_QUESTION if content_words(condition) - {"ask"} else LineKind.FACT


def _kind_of(text: str) -> LineKind:
    if text.startswith("About "):
        return LineKind.PREFERENCE
    if _NOT_A_REQUEST.search(text) and not re.search(r"\balso want\b", text):
        return LineKind.PREFERENCE
    if _REQUEST.search(text):
        return (
            LineKind.REQUEST
            if _SEPARATE_REQUEST.search(text) or text.startswith("Please")
            else LineKind.PREFERENCE
        )
    return (
        LineKind.PREFERENCE
        if re.search(r"\b(?:prefer|willing|only|okay|ok|fine|happy)\b", text)
        else LineKind.FACT
    )
