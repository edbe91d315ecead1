"""Whether an answer is right."""

import re
from collections.abc import Callable, Mapping

from grpo_cl.memory.answerers import UNKNOWN
from grpo_cl.memory.instances import Question
from grpo_cl.memory.tokens import count_tokens

LONGEST_ANSWER = 64
"""Tokens of an answer that is searched for the right one: whoever recites everything is wrong."""

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_NOT_KNOWN = re.compile(
    r"\b(?:unknown|not (?:known|mentioned|stated|available)|no information|(?:do not|don t|cannot) "
    r"(?:know|say|tell)|unanswerable)\b"
)


def mark(answer: str, question: Question) -> float:
    """The share of the question that an answer gets right."""
    said = normalized(answer)
    if not said:
        return 0.0  # saying nothing is not the same as saying that nothing is known
    if question.is_unanswerable:
        return float(said == UNKNOWN or bool(_NOT_KNOWN.search(said)))
    return _METRICS[question.metric](answer, question.answers)


def normalized(text: str) -> str:
    """Lower case, no punctuation, no articles, single blanks."""
    return " ".join(_ARTICLES.sub(" ", re.sub(r"[^\w\s]", " ", text.lower())).split())


def _exact(answer: str, golds: tuple[str, ...]) -> float:
    return float(any(normalized(answer) == normalized(gold) for gold in golds))


def _contains(answer: str, golds: tuple[str, ...]) -> float:
    if count_tokens(answer) > LONGEST_ANSWER:
        return 0.0
    return float(any(_holds(answer, gold) for gold in golds))


def _keywords(answer: str, golds: tuple[str, ...]) -> float:
    return sum(_holds(answer, gold) for gold in golds) / len(golds)


def _boxed(answer: str, golds: tuple[str, ...]) -> float:
    found = _BOXED.findall(answer)
    return _exact(found[-1], golds) if found else 0.0


def _holds(answer: str, gold: str) -> bool:
    """Whole words, and never the other way round: a part of the right answer is not right."""
    wanted = normalized(gold)
    return bool(wanted) and f" {wanted} " in f" {normalized(answer)} "


_METRICS: Mapping[str, Callable[[str, tuple[str, ...]], float]] = {
    "exact": _exact,
    "contains": _contains,
    "keywords": _keywords,
    "boxed": _boxed,
    "judge": _contains,
}
