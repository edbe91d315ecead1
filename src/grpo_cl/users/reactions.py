"""Which held-back lines an agent's message sets off."""

from collections.abc import Sequence

from grpo_cl.users.cues import consent_asks, denies
from grpo_cl.users.scenario import Kind, Line
from grpo_cl.users.sentences import content_words
from grpo_cl.users.topics import CHOICE, asks_identity, questions

_COMMON = content_words(
    "agent asks asked tells told says said mentions possible not available service wants insists "
    "gives given provides provided provide order orders item change changes confirm confirmation "
    "final finally allowed even"
)
"""Words of a condition that say nothing about its subject."""


def triggered(lines: Sequence[Line], text: str) -> Line | None:
    """The first line whose condition ``text`` meets."""
    return next((line for line in lines if _is_met(line, text)), None)


def concerns(line: Line, sentence: str) -> bool:
    """Whether a sentence is about what a line reacts to."""
    subject = _subject(line)
    shared = subject & content_words(sentence)
    return bool(shared) and 2 * len(shared) >= min(len(subject), 4)


def _subject(line: Line) -> frozenset[str]:
    return content_words(line.condition) - _COMMON


def _is_met(line: Line, text: str) -> bool:
    if line.kind is Kind.CONFIRM:
        return bool(consent_asks(text))
    if line.kind is Kind.ASKED:
        return any(_is_asked(line, ask) for ask in questions(text))
    if line.kind is Kind.DENIED:
        return denies(text) and _is_denied(line, text)
    return line.kind is Kind.TOLD and _is_told(line, text)


def _is_asked(line: Line, ask: str) -> bool:
    if "choos" in _subject(line) and CHOICE.search(ask):
        return True
    return concerns(line, ask)


def _is_denied(line: Line, text: str) -> bool:
    subject = _subject(line)
    if not subject:
        return not asks_identity(text)  # a failed look-up refuses nothing yet
    return bool(subject & content_words(text))


def _is_told(line: Line, text: str) -> bool:
    if "option" in _subject(line) and CHOICE.search(text):
        return True
    return concerns(line, text)
