"""Search in two layers: categories, then entries."""

from collections import Counter
from typing import NamedTuple

from grpo_cl.memory import Entry, MemorySystem
from grpo_cl.memory.answerers import Context
from grpo_cl.memory.retrieval import Retriever


class RetrievalResult(NamedTuple):
    """What was found for a query."""

    categories: tuple[str, ...]
    """What the query is about, the best first."""
    entries: tuple[Entry, ...]
    scores: tuple[float, ...]
    core: str

    @property
    def text(self) -> str:
        """All of it as lines to read."""
        return Context(self.core, self.entries).text


class TwoLayerRAGRetriever:
    """Finds a few entries of each category, those of the categories a query is about first.

    The index is the memory's own and follows each edit. A category is a hint: an entry that is
    filed wrongly is still found.
    """

    def __init__(
        self,
        memory: MemorySystem,
        k_categories: int = 3,
        n_entries_per_category: int = 5,
        use_core_memory: bool = True,  # noqa: FBT001, FBT002  # the earlier signature
    ) -> None:
        self._memory = memory
        self._retriever = Retriever(num_categories=k_categories)
        self._per_category = n_entries_per_category
        self._use_core = use_core_memory

    def retrieve(self, query: str) -> RetrievalResult:
        """What the memory holds about ``query`` at this moment."""
        most = self._retriever.num_categories * self._per_category
        taken: Counter[str | None] = Counter()
        kept = []
        for hit in self._retriever.search(self._memory, query, k=len(self._memory.entries)):
            taken[hit.entry.category] += 1
            if taken[hit.entry.category] <= self._per_category and len(kept) < most:
                kept.append(hit)
        return RetrievalResult(
            tuple(self._retriever.categories(self._memory, query)),
            tuple(hit.entry for hit in kept),
            tuple(hit.score for hit in kept),
            self._memory.core if self._use_core else "",
        )
