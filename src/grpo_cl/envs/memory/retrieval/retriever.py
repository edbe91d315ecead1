"""Two-layer retrieval: categories, then entries.

Both layers fuse BM25 with embedding similarity. By default the category layer is a prior, not a
filter: an entry in the wrong category has a lower score and is still found.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from grpo_cl.envs.memory.retrieval.bm25 import bm25_scores
from grpo_cl.envs.memory.store.system import Entry, MemorySystem


class Hit(NamedTuple):
    """A retrieved entry with its score."""

    entry: Entry
    score: float


class SemanticScorer(Protocol):
    """Scores texts by their similarity to a query; ``EmbeddingScorer`` is one."""

    def scores(self, texts: Mapping[int, str], query: str) -> dict[int, float]:
        """A score for each text, higher for more similar ones."""
        ...


@dataclass(frozen=True, kw_only=True)
class Retriever:
    """Searches a memory; it has no state, so every edit of the memory takes effect at once."""

    semantic: SemanticScorer | None = None
    weight: float = 0.5
    """Weight of the semantic score; BM25 has the rest."""
    prior: float = 1.15
    """Factor on the score of an entry in one of the best categories."""
    num_categories: int = 3
    """Number of best categories."""
    gate: bool = False
    """Whether entries of other categories are excluded; entries without category never are."""

    def search(
        self, memory: MemorySystem, query: str, *, k: int = 10, budget_tokens: int | None = None
    ) -> list[Hit]:
        """The best ``k`` entries, best first; an entry beyond the token budget is skipped."""
        left = memory.tokens() if budget_tokens is None else budget_tokens
        selected: list[Hit] = []
        for hit in self._ranked(memory, query):
            if len(selected) == k:
                break
            if hit.entry.tokens <= left:
                left -= hit.entry.tokens
                selected.append(hit)
        return selected

    def categories(self, memory: MemorySystem, query: str) -> list[str]:
        """The categories that match a query, best first."""
        categories = memory.taxonomy.categories
        lexical = bm25_scores(memory.category_index, query)
        scores = self._fused(
            lexical, lambda: {i: category.text for i, category in enumerate(categories)}, query
        )
        best = sorted(scores, key=lambda i: (-scores[i], i))[: self.num_categories]
        return [categories[i].name for i in best]

    def _ranked(self, memory: MemorySystem, query: str) -> Iterator[Hit]:
        lexical = bm25_scores(memory.entry_index, query)
        entries = memory.entries
        scores = self._fused(
            lexical, lambda: {entry.id: entry.content for entry in entries.values()}, query
        )
        best = set(self.categories(memory, query))
        hits: list[Hit] = []
        for entry_id, score in scores.items():
            entry = entries[entry_id]
            if entry.category in best:
                hits.append(Hit(entry, score * self.prior))
            elif not self.gate or entry.category is None:
                hits.append(Hit(entry, score))
        yield from sorted(hits, key=lambda hit: (-hit.score, hit.entry.id))

    def _fused(
        self, bm25: Mapping[int, float], texts: Callable[[], Mapping[int, str]], query: str
    ) -> dict[int, float]:
        """The weighted sum of both scores, each scaled to at most 1."""
        highest = max(bm25.values(), default=1.0)
        lexical = {key: score / highest for key, score in bm25.items()}
        semantic = self.semantic.scores(texts(), query) if self.semantic else {}
        if not semantic:
            return lexical
        low, high = min(semantic.values()), max(semantic.values())
        spread = high - low
        return {
            key: (1 - self.weight) * lexical.get(key, 0.0)
            + self.weight * ((score - low) / spread if spread else 1.0)
            for key, score in semantic.items()
        }
