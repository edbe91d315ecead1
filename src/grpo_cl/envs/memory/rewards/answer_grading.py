"""Answer grading: exact match, substring, keywords."""

import re
from collections.abc import Callable, Mapping

from grpo_cl.envs.memory.instances import Question
from grpo_cl.envs.memory.retrieval.tokenizer import count_tokens

UNKNOWN = "unknown"
"""The answer if the context does not hold one."""

MAX_ANSWER_TOKENS = 64
"""Longer answers score 0 under ``contains``: a copy of the whole context is no answer."""

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_ABSTENTION = re.compile(
    r"\b(?:unknown|not (?:known|mentioned|stated|available)|no information|(?:do not|don t|cannot) "
    r"(?:know|say|tell)|unanswerable)\b"
)


def grade(answer: str, question: Question) -> float:
    """The score of an answer, between 0 and 1."""
    text = normalized(answer)
    if not text:
        return 0.0  # an empty answer is no abstention
    if question.is_unanswerable:
        return float(text == UNKNOWN or bool(_ABSTENTION.search(text)))
    return _METRICS[question.metric](answer, question.answers)


def normalized(text: str) -> str:
    """Lower case, no punctuation, no articles, single blanks."""
    return " ".join(_ARTICLES.sub(" ", re.sub(r"[^\w\s]", " ", text.lower())).split())


def _exact(answer: str, golds: tuple[str, ...]) -> float:
    return float(any(normalized(answer) == normalized(gold) for gold in golds))


def _contains(answer: str, golds: tuple[str, ...]) -> float:
    if count_tokens(answer) > MAX_ANSWER_TOKENS:
        return 0.0
    return float(any(_contains_gold(answer, gold) for gold in golds))


def _keywords(answer: str, golds: tuple[str, ...]) -> float:
    return sum(_contains_gold(answer, gold) for gold in golds) / len(golds)


def _boxed(answer: str, golds: tuple[str, ...]) -> float:
    boxed = _BOXED.findall(answer)
    return _exact(boxed[-1], golds) if boxed else 0.0


def _contains_gold(answer: str, gold: str) -> bool:
    """Whether the gold answer occurs in the answer as whole words; the reverse does not count."""
    text = normalized(gold)
    return bool(text) and f" {text} " in f" {normalized(answer)} "


_METRICS: Mapping[str, Callable[[str, tuple[str, ...]], float]] = {
    "exact": _exact,
    "contains": _contains,
    "keywords": _keywords,
    "boxed": _boxed,
    "judge": _contains,
}
