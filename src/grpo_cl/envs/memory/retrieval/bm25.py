"""Lexical retrieval: an inverted index that is edited incrementally, and BM25 over it.

Lucene's inverse document frequency is positive for every term, so the only entry of a small memory
can be found.
"""

from collections.abc import Mapping
from math import log

from grpo_cl.envs.memory.retrieval.copy_on_write import CopyOnWriteDict
from grpo_cl.envs.memory.retrieval.tokenizer import terms

K1 = 0.9
"""Term frequency saturation."""
B = 0.4
"""Document length normalization."""


class InvertedIndex:
    """Term counts by term and document; copies share the postings that neither has changed."""

    def __init__(self) -> None:
        self._postings = CopyOnWriteDict[str, dict[int, int]]()
        self._owned: set[str] = set()
        """Terms whose postings no copy shares."""
        self._lengths = CopyOnWriteDict[int, int]()
        self._total = 0

    def copy(self) -> "InvertedIndex":
        """An independent index with the same documents."""
        copied = InvertedIndex()
        copied._postings = self._postings.copy()
        copied._lengths = self._lengths.copy()
        copied._total = self._total
        self._owned = set()  # all postings are shared with the copy from here on
        return copied

    def add(self, document: int, text: str) -> None:
        """Add the terms of ``text`` to a document."""
        counts = terms(text)
        for term, count in counts:
            postings = self._own_postings(term)
            postings[document] = postings.get(document, 0) + count
        self._change_length(document, sum(count for _, count in counts))

    def remove(self, document: int, text: str) -> None:
        """Undo ``add``; documents without terms and terms without documents are deleted."""
        counts = terms(text)
        for term, count in counts:
            postings = self._own_postings(term)
            postings[document] -= count
            if not postings[document]:
                del postings[document]
            if not postings:
                del self._postings[term]
                self._owned.discard(term)
        self._change_length(document, -sum(count for _, count in counts))
        if not self._lengths[document]:
            del self._lengths[document]

    def documents(self, term: str) -> Mapping[int, int]:
        """The count of ``term`` by document."""
        return self._postings.get(term, {})

    def length(self, document: int) -> int:
        """The number of terms in a document."""
        return self._lengths[document]

    @property
    def mean_length(self) -> float:
        """The mean number of terms in a document."""
        return self._total / max(len(self._lengths), 1)

    def __len__(self) -> int:
        return len(self._lengths)

    def _own_postings(self, term: str) -> dict[int, int]:
        if term not in self._owned:
            self._postings[term] = dict(self._postings.get(term, {}))
            self._owned.add(term)
        return self._postings[term]

    def _change_length(self, document: int, count: int) -> None:
        self._lengths[document] = self._lengths.get(document, 0) + count
        self._total += count


def bm25_scores(index: InvertedIndex, query: str) -> dict[int, float]:
    """The positive score of each document that shares a term with ``query``."""
    scores: dict[int, float] = {}
    mean = index.mean_length
    for term, query_count in terms(query):
        documents = index.documents(term)
        weight = query_count * _idf(len(documents), len(index))
        for document, count in documents.items():
            relative = index.length(document) / mean
            saturation = count / (count + K1 * (1 - B + B * relative))
            scores[document] = scores.get(document, 0.0) + weight * saturation
    return scores


def _idf(document_frequency: int, num_documents: int) -> float:
    return log(1 + (num_documents - document_frequency + 0.5) / (document_frequency + 0.5))
