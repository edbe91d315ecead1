"""Sentence splitting, content words, and pattern helpers."""

import re
from functools import lru_cache

_LIST = re.compile(r":[ \t]*\n((?:[ \t]*[-*•][^\n]*(?:\n|$))+)")
_BREAK = re.compile(
    r"(?:(?<=[.!?])|(?<=[.!?]['\")\]]))(?<!\bi\.e\.)(?<!\be\.g\.)(?<!\bSt\.)(?<!\bvs\.)"
    r"\s+(?=[*_]*['\"(#]*[A-Z0-9])"
    r"|\n\s*\n"
    r"|(?<=[.!?:])\s*\n"
    r"|\n\s*(?=(?:[-*•]|\d+[.)])\s)"
    r"|(?<=[a-z])\s+(?=You (?:do|don't|want|prefer|are|also|will)\b)"
)
_CUT_OFF = re.compile(r"\b(?:the|a|an)$")
_BULLET = re.compile(r"^(?:[-*•]+|\d+[.)])\s+")
_WORD = re.compile(r"[a-z0-9][a-z0-9'_\-]*")
_SUFFIX = re.compile(r"(?:ations?|ing|ment|ions?|ed|es|s)$")

_STOP_WORD_LIST = (
    "a about after again all also am an and any anything are as at be because been before "
    "being but by can cannot could did do does doing done don't else ever every first for "
    "from further get give go going had has have having he help her here him his how however "
    "i i'd i'll i'm i've if in into is it it's its just know let like made make may me might "
    "more most must my need needs never no not now of ok okay on once one only or other our "
    "out over own please provide put really say see she should so some something such sure "
    "take tell than thank thanks that that's the their them then there these they thing "
    "things this those to too under until up us use using very want wants was we were what "
    "when where whether which while who why will wish with without would yes you your agent "
    "information assist able case right currently look details detail"
)
_STOP_WORDS = frozenset(_STOP_WORD_LIST.split())


@lru_cache(maxsize=4096)  # all dialogue acts split the same message
def split_sentences(text: str) -> tuple[str, ...]:
    """The sentences of ``text`` without bullets and line breaks; a list after a colon is one."""
    joined = _LIST.sub(_join_list, text)
    pieces = (_BULLET.sub("", piece.strip()) for piece in _BREAK.split(joined))
    cleaned = (" ".join(piece.split()).lstrip(". ") for piece in pieces)
    return tuple(
        piece for piece in cleaned if re.search(r"[A-Za-z]", piece) and not _CUT_OFF.search(piece)
    )


def content_words(text: str) -> frozenset[str]:
    """The stems of the content words of ``text``."""
    words = _WORD.findall(text.lower())
    return frozenset(
        _stem(word)
        for word in words
        if word not in _STOP_WORDS and (len(word) > 2 or word[0].isdigit())
    )


def any_of(*patterns: str) -> re.Pattern[str]:
    """A case-insensitive pattern that matches any of ``patterns``."""
    return re.compile("|".join(patterns), re.IGNORECASE)


def as_sentence(text: str) -> str:
    """``text`` with a capital first letter and a full stop."""
    text = text.strip(" ,;")
    if not re.search(r"\w", text):
        return ""
    ended = text if text[-1] in ".!?" or text[-2:] in {".'", '."'} else f"{text}."
    return ended[0].upper() + ended[1:]


def _join_list(match: re.Match[str]) -> str:
    items = [
        _BULLET.sub("", line.strip()).strip() for line in match[1].splitlines() if line.strip()
    ]
    body = ", ".join(item.rstrip(". ;") for item in items)
    return f": {body}.\n\n"


def _stem(word: str) -> str:
    stem = _SUFFIX.sub("", word)
    if len(stem) < 3 or word[0].isdigit():
        return word
    if len(stem) > 3 and stem[-1] == stem[-2]:
        stem = stem[:-1]  # "cancelled" and "canceled" have the same stem
    return stem.rstrip("e") if len(stem) > 3 else stem
