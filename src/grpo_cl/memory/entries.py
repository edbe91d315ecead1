"""What a memory is made of, as it is written to disk."""

from functools import lru_cache
from typing import Literal

from grpo_cl.memory.rules import Limits
from grpo_cl.memory.taxonomy import Taxonomy
from grpo_cl.memory.tokens import count_tokens
from grpo_cl.records import Record


class Version(Record):
    """What a memory said until it was changed."""

    content: str
    timestamp: str | None = None
    source_chunk: int | None = None
    """The chunk whose reading wrote it."""


class Entry(Record):
    """One thing that is remembered."""

    id: int
    """Unique among all types, and never used again."""
    type: str
    category: str | None = None
    content: str
    timestamp: str | None = None
    importance: float = 0.5
    source_chunk: int | None = None
    """The chunk whose reading wrote the present content."""
    history: tuple[Version, ...] = ()
    """Earlier versions, the oldest first."""

    @property
    def tokens(self) -> int:
        """The length of the content."""
        return count_tokens(self.content)


class MemoryFile(Record):
    """A memory as it is written to disk."""

    version: Literal[1] = 1
    taxonomy: Taxonomy
    limits: Limits
    core: Version | None
    core_history: tuple[Version, ...]
    next_id: int
    entries: tuple[Entry, ...]


@lru_cache(maxsize=8192)  # a text is compared whenever its entry is written or replaced
def normalized(text: str) -> str:
    """``text`` by which two texts are the same: no case, single blanks, no final stop."""
    return " ".join(text.casefold().split()).rstrip(".!?") or text
