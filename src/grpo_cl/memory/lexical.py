"""Searching by words: an index that follows every edit, and BM25 over it.

A term is a stemmed word that is no stop word. The inverse document frequency is Lucene's, which is
positive for every term, so that the only entry of a small memory can be found.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from math import log

from snowballstemmer.english_stemmer import EnglishStemmer

from grpo_cl.memory.layered import Layered
from grpo_cl.memory.tokens import UNSPACED

_WORD = re.compile(rf"[{UNSPACED}]|(?:(?![{UNSPACED}])[^\W_])+")

STOP_WORDS = frozenset(
    _WORD.findall(
        """
        a about am an and any are as at be been but by can could d did do does don for from had has
        have he her hers him his how i if in into is it its just ll m me my not of on or our re s
        she should so some t than that the their them then there these they this those to us ve was
        we were what when where which who whom whose why will with would you your
        """
    )
)


@lru_cache(maxsize=65536)  # the pure Python stemmer is slow, and the same everywhere
def _stem(word: str) -> str:
    return _stemmer().stemWord(word)


@cache
def _stemmer() -> EnglishStemmer:
    return EnglishStemmer()


@lru_cache(maxsize=4096)  # the episodes of a group write and read many identical texts
def terms(text: str) -> tuple[tuple[str, int], ...]:
    """The terms of ``text``, each with how often it occurs."""
    words = _WORD.findall(unicodedata.normalize("NFKC", text).casefold())
    return tuple(Counter(_stem(word) for word in words if word not in STOP_WORDS).items())


class Postings:
    """Which documents hold a term, and how often; copies share what neither has changed since."""

    def __init__(self) -> None:
        self._postings = Layered[str, dict[int, int]]()
        self._own: set[str] = set()
        self._lengths = Layered[int, int]()
        self._total = 0

    def copy(self) -> "Postings":
        """An independent index with the same documents."""
        twin = Postings()
        twin._postings = self._postings.copy()
        twin._lengths = self._lengths.copy()
        twin._total = self._total
        self._own = set()  # from here on both read the same postings
        return twin

    def add(self, document: int, text: str) -> None:
        """Let ``document`` hold ``text``, besides what it already holds."""
        bag = terms(text)
        for term, count in bag:
            postings = self._private(term)
            postings[document] = postings.get(document, 0) + count
        self._grow(document, sum(count for _, count in bag))

    def remove(self, document: int, text: str) -> None:
        """Take back what ``add`` gave; a document without terms is gone, as is an unused term."""
        bag = terms(text)
        for term, count in bag:
            postings = self._private(term)
            postings[document] -= count
            if not postings[document]:
                del postings[document]
            if not postings:
                del self._postings[term]
                self._own.discard(term)
        self._grow(document, -sum(count for _, count in bag))
        if not self._lengths[document]:
            del self._lengths[document]

    def documents(self, term: str) -> Mapping[int, int]:
        """How often each document holds ``term``."""
        return self._postings.get(term, {})

    def length(self, document: int) -> int:
        """The number of terms in a document."""
        return self._lengths[document]

    @property
    def mean_length(self) -> float:
        """The number of terms in a document, on average."""
        return self._total / max(len(self._lengths), 1)

    def __len__(self) -> int:
        return len(self._lengths)

    def _private(self, term: str) -> dict[int, int]:
        if term not in self._own:
            self._postings[term] = dict(self._postings.get(term, {}))
            self._own.add(term)
        return self._postings[term]

    def _grow(self, document: int, count: int) -> None:
        self._lengths[document] = self._lengths.get(document, 0) + count
        self._total += count


@dataclass(frozen=True, kw_only=True)
class BM25:
    """Scores documents by the terms they share with a query."""

    k1: float = 0.9
    """How much a repeated term still counts."""
    b: float = 0.4
    """How much a long document is held against."""

    def scores(self, index: Postings, query: str) -> dict[int, float]:
        """The score of every document that shares a term with ``query``; all are positive."""
        found: dict[int, float] = {}
        mean = index.mean_length
        for term, repeats in terms(query):
            documents = index.documents(term)
            weight = repeats * self._idf(len(documents), len(index))
            for document, count in documents.items():
                relative = index.length(document) / mean
                saturation = count / (count + self.k1 * (1 - self.b + self.b * relative))
                found[document] = found.get(document, 0.0) + weight * saturation
        return found

    def _idf(self, holders: int, total: int) -> float:
        return log(1 + (total - holders + 0.5) / (holders + 0.5))
