"""Finding what a query needs, in two layers: categories, then entries.

Both layers fuse words and meaning. By default the category layer is a prior and not a gate: an
entry that is filed wrongly loses a little of its score and is still found.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple, Protocol

from grpo_cl.memory.entries import Entry
from grpo_cl.memory.lexical import BM25
from grpo_cl.memory.store import MemorySystem


class Hit(NamedTuple):
    """An entry that was found."""

    entry: Entry
    score: float


class Meaning(Protocol):
    """Scores texts by how close in meaning they are to a query; ``Semantic`` is one."""

    def scores(self, texts: Mapping[int, str], query: str) -> dict[int, float]:
        """A score for each text, higher for closer."""
        ...


@dataclass(frozen=True)
class Retriever:
    """Searches a memory; it keeps nothing of it, so every edit is seen at once."""

    lexical: BM25 = field(default_factory=BM25)
    semantic: Meaning | None = None
    _: KW_ONLY
    weight: float = 0.5
    """The share of meaning in a score; the rest is words."""
    prior: float = 1.15
    """What the score of an entry in one of the best categories is multiplied by."""
    num_categories: int = 3
    """How many categories are the best."""
    gate: bool = False
    """Whether entries in other categories are left out; unfiled ones never are."""

    def search(
        self, memory: MemorySystem, query: str, *, k: int = 10, budget_tokens: int | None = None
    ) -> list[Hit]:
        """The best entries, best first; one that does not fit into the budget is passed over."""
        left = memory.tokens() if budget_tokens is None else budget_tokens
        found: list[Hit] = []
        for hit in self._ranked(memory, query):
            if len(found) == k:
                break
            if hit.entry.tokens <= left:
                left -= hit.entry.tokens
                found.append(hit)
        return found

    def categories(self, memory: MemorySystem, query: str) -> list[str]:
        """The categories a query is about, the best first."""
        known = memory.taxonomy.categories
        words = self.lexical.scores(memory.category_words, query)
        scores = self._fused(
            words, lambda: {place: category.text for place, category in enumerate(known)}, query
        )
        best = sorted(scores, key=lambda place: (-scores[place], place))[: self.num_categories]
        return [known[place].name for place in best]

    def _ranked(self, memory: MemorySystem, query: str) -> Iterator[Hit]:
        words = self.lexical.scores(memory.words, query)
        entries = memory.entries
        scores = self._fused(
            words, lambda: {entry.id: entry.content for entry in entries.values()}, query
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
        self, words: Mapping[int, float], texts: Callable[[], Mapping[int, str]], query: str
    ) -> dict[int, float]:
        most = max(words.values(), default=1.0)
        lexical = {key: score / most for key, score in words.items()}
        meaning = self.semantic.scores(texts(), query) if self.semantic else {}
        if not meaning:
            return lexical
        low, high = min(meaning.values()), max(meaning.values())
        spread = high - low
        return {
            key: (1 - self.weight) * lexical.get(key, 0.0)
            + self.weight * ((score - low) / spread if spread else 1.0)
            for key, score in meaning.items()
        }
