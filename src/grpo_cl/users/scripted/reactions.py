"""Reactions to an agent's message: answers to consent questions, and conditional script lines."""

import re
from collections.abc import Sequence

from grpo_cl.users.scripted.dialogue_acts import consent_questions, is_refusal
from grpo_cl.users.scripted.scenario import LineKind, ScriptLine
from grpo_cl.users.scripted.sentences import content_words
from grpo_cl.users.scripted.topics import OPEN_CHOICE, asks_identity, find_questions

YES = "Yes, please go ahead."
NO = "No, thank you."

_REFUSAL = re.compile(
    r"\b(?:do|does|will|would) not (?:\w+ )?(?:want|need|accept|wish)|\b(?:don't|won't) (?:want"
    r"|need|accept)|"
    r"\bunder no circumstances\b|\bnot willing\b|\bnever want\b",
    re.IGNORECASE,
)
_EXPLICIT_REFUSAL = re.compile(
    r"\brefuse to\b|\bout of the question\b|\bkeep the plan\b|\bwill not have\b"
    r"|\bturn down every\b",
    re.IGNORECASE,
)
"""Explicit refusals: one word shared with the question is enough."""
_PROVISO = re.compile(r"\b(?:if|unless|until|other|without|only)\b", re.IGNORECASE)
_EXTRA = re.compile(r"\badd\b.*\binsurance\b|\binsurance\?|\btravel insurance\b", re.IGNORECASE)
_TRANSFER = re.compile(r"\btransfer", re.IGNORECASE)
_CLAUSES = re.compile(r",? (?:but|and) (?=I\b)", re.IGNORECASE)

_GENERIC_WORDS = content_words(
    "agent asks asked tells told says said mentions possible not available service wants insists "
    "gives given provides provided provide order orders item change changes confirm confirmation "
    "final finally allowed even"
)
"""Words of a condition that do not identify its subject."""


def answer_consent(question: str, lines: Sequence[ScriptLine]) -> str:
    """The answer to a yes-or-no question: a refusal from the scenario, or a plain yes or no."""
    clauses = [
        clause
        for line in lines
        if line.kind in {LineKind.FACT, LineKind.REQUEST, LineKind.PREFERENCE}
        for clause in _CLAUSES.split(line.text)
    ]
    refusals = [clause for clause in clauses if _is_refusal_clause(clause)]
    others = [clause for clause in clauses if clause not in refusals]
    refusal = _closest(question, refusals)
    if refusal and _num_shared_words(question, refusal) > max(
        (_num_shared_words(question, clause) for clause in others), default=0
    ):
        return f"No. {refusal[0].upper()}{refusal[1:].rstrip('.')}."
    wants_extra = any("insurance" in clause for clause in others)
    return NO if _EXTRA.search(question) and not wants_extra else YES


def _closest(question: str, clauses: Sequence[str]) -> str:
    best = max(clauses, key=lambda clause: _num_shared_words(question, clause), default="")
    is_transfer = bool(_TRANSFER.search(question) and _TRANSFER.search(best))
    is_extra = "insurance" in best and "insurance" in question.lower()
    required = 1 if _EXPLICIT_REFUSAL.search(best) or is_transfer or is_extra else 2
    return best if _num_shared_words(question, best) >= required else ""


def _is_refusal_clause(clause: str) -> bool:
    if _EXPLICIT_REFUSAL.search(clause):
        return True
    return bool(_REFUSAL.search(clause)) and not _PROVISO.search(clause)


def _num_shared_words(question: str, clause: str) -> int:
    return len(content_words(question) & content_words(clause))


def first_triggered(lines: Sequence[ScriptLine], text: str) -> ScriptLine | None:
    """The first line whose condition is met by the agent's ``text``."""
    return next((line for line in lines if _is_met(line, text)), None)


def is_about(line: ScriptLine, sentence: str) -> bool:
    """Whether a sentence is about the subject of a line's condition."""
    subject = _subject(line)
    shared = subject & content_words(sentence)
    return bool(shared) and 2 * len(shared) >= min(len(subject), 4)


def _subject(line: ScriptLine) -> frozenset[str]:
    return content_words(line.condition) - _GENERIC_WORDS


def _is_met(line: ScriptLine, text: str) -> bool:
    if line.kind is LineKind.ON_CONSENT_QUESTION:
        return bool(consent_questions(text))
    if line.kind is LineKind.ON_QUESTION:
        return any(_is_asked_about(line, question) for question in find_questions(text))
    if line.kind is LineKind.ON_REFUSAL:
        return is_refusal(text) and _is_refused(line, text)
    return line.kind is LineKind.ON_STATEMENT and _is_stated(line, text)


def _is_asked_about(line: ScriptLine, question: str) -> bool:
    if "choos" in _subject(line) and OPEN_CHOICE.search(question):
        return True
    return is_about(line, question)


def _is_refused(line: ScriptLine, text: str) -> bool:
    subject = _subject(line)
    if not subject:
        return not asks_identity(text)  # a failed identification is not a refusal
    return bool(subject & content_words(text))


def _is_stated(line: ScriptLine, text: str) -> bool:
    if "option" in _subject(line) and OPEN_CHOICE.search(text):
        return True
    return is_about(line, text)
