"""A memory: one core text and typed entries.

Every change is validated before it is applied, so a refused call leaves the memory unchanged.
Copies share all data that neither has changed.
"""

import copy
import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from grpo_cl.envs.memory.retrieval.bm25 import InvertedIndex
from grpo_cl.envs.memory.retrieval.copy_on_write import CopyOnWriteDict
from grpo_cl.envs.memory.retrieval.tokenizer import count_tokens
from grpo_cl.envs.memory.store.taxonomy import DEFAULT_TYPE, Taxonomy, default_taxonomy
from grpo_cl.envs.memory.store.validation import (
    Limits,
    check_category,
    check_id,
    check_importance,
    check_text,
    check_timestamp,
    check_type,
)
from grpo_cl.errors import TaskDataError, ToolError
from grpo_cl.storage.files import write_json
from grpo_cl.types import Record, first_problem


class Version(Record):
    """An earlier content of an entry or of the core text."""

    content: str
    timestamp: str | None = None
    source_chunk: int | None = None
    """The chunk at which it was written."""


class Entry(Record):
    """One memory entry."""

    id: int
    """Unique over all types, and never reused."""
    type: str
    category: str | None = None
    content: str
    timestamp: str | None = None
    importance: float = 0.5
    source_chunk: int | None = None
    """The chunk at which the current content was written."""
    history: tuple[Version, ...] = ()
    """Earlier versions, oldest first."""

    @property
    def tokens(self) -> int:
        """The length of the content."""
        return count_tokens(self.content)


class MemoryFile(Record):
    """The file format of a memory."""

    version: Literal[1] = 1
    taxonomy: Taxonomy
    limits: Limits
    core: Version | None
    core_history: tuple[Version, ...]
    next_id: int
    entries: tuple[Entry, ...]


@lru_cache(maxsize=8192)  # a text is compared whenever its entry is written or replaced
def normalized(text: str) -> str:
    """``text`` for duplicate detection: casefolded, single blanks, no final punctuation."""
    return " ".join(text.casefold().split()).rstrip(".!?") or text


class MemorySystem:
    """The memory of one episode."""

    def __init__(self, taxonomy: Taxonomy | None = None, limits: Limits | None = None) -> None:
        self.taxonomy = taxonomy or default_taxonomy()
        self.limits = limits or Limits()
        self._core: Version | None = None
        self._core_history: tuple[Version, ...] = ()
        self._entries = CopyOnWriteDict[int, Entry]()
        self._ids_by_key = CopyOnWriteDict[str, int]()
        self._next_id = 1
        self._tokens = 0
        self._entry_index = InvertedIndex()
        self._category_index = self.taxonomy.term_index.copy()

    @property
    def core(self) -> str:
        """The core text; empty until it is first written."""
        return self._core.content if self._core else ""

    @property
    def core_source(self) -> int | None:
        """The chunk at which the core text was written."""
        return self._core.source_chunk if self._core else None

    @property
    def core_history(self) -> tuple[Version, ...]:
        """Earlier core texts, oldest first."""
        return self._core_history

    @property
    def entries(self) -> Mapping[int, Entry]:
        """All entries by id, in the order they were inserted."""
        return self._entries

    @property
    def entry_index(self) -> InvertedIndex:
        """The index over the contents of the entries, by id; every edit updates it."""
        return self._entry_index

    @property
    def category_index(self) -> InvertedIndex:
        """The index over the categories, by position: their descriptions and their entries."""
        return self._category_index

    def insert(
        self,
        content: str,
        *,
        type: str = DEFAULT_TYPE,
        category: str | None = None,
        timestamp: str | None = None,
        importance: float = 0.5,
        source_chunk: int | None = None,
    ) -> Entry:
        """Add an entry and return it."""
        entry = Entry(
            id=self._next_id,
            type=check_type(type, self.taxonomy),
            category=check_category(category, self.taxonomy),
            content=check_text(content, what="content", limit=self.limits.entry_tokens),
            timestamp=check_timestamp(timestamp),
            importance=check_importance(importance),
            source_chunk=source_chunk,
        )
        self._refuse_duplicate(entry)
        if len(self._entries) >= self.limits.entries:
            raise ToolError(
                f"the memory has {len(self._entries)} entries, the limit is "
                f"{self.limits.entries}; update or delete one instead"
            )
        self._next_id += 1
        self._add(entry)
        return entry

    def update(
        self,
        entry_id: int,
        *,
        content: str | None = None,
        category: str | None = None,
        timestamp: str | None = None,
        importance: float | None = None,
        source_chunk: int | None = None,
    ) -> Entry:
        """Change the given fields of an entry and add its earlier version to its history."""
        old = check_id(entry_id, self._entries)
        changes: dict[str, Any] = {}
        if content is not None:
            limit = self.limits.entry_tokens
            changes["content"] = check_text(content, what="content", limit=limit)
        if category is not None:
            changes["category"] = check_category(category, self.taxonomy)
        if timestamp is not None:
            changes["timestamp"] = check_timestamp(timestamp)
        if importance is not None:
            changes["importance"] = check_importance(importance)
        return self._replace(old, changes, source_chunk)

    def delete(self, entry_id: int) -> Entry:
        """Delete an entry and return it."""
        entry = check_id(entry_id, self._entries)
        self._unindex(entry)
        del self._entries[entry.id]
        return entry

    def update_core(self, text: str, *, source_chunk: int | None = None) -> None:
        """Replace the core text."""
        content = check_text(text, what="core memory", limit=self.limits.core_tokens)
        if normalized(content) == normalized(self.core):
            raise ToolError("the new core memory says what the old one says; change it, or skip")
        self._tokens += count_tokens(content) - count_tokens(self.core)
        if self._core:
            self._core_history = (*self._core_history, self._core)
        self._core = Version(content=content, source_chunk=source_chunk)

    def tokens(self) -> int:
        """The length of the core text and all entries."""
        return self._tokens

    def copy(self) -> "MemorySystem":
        """An independent memory with the same content; the cost does not grow with its size."""
        copied = copy.copy(self)
        copied._entries = self._entries.copy()
        copied._ids_by_key = self._ids_by_key.copy()
        copied._entry_index = self._entry_index.copy()
        copied._category_index = self._category_index.copy()
        return copied

    def hash(self) -> str:
        """SHA-256 of core text and entries, with ids and histories."""
        text = json.dumps(self._file().model_dump(exclude={"taxonomy", "limits"}), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The whole state of the memory."""
        return self._file().model_dump(mode="json")

    @classmethod
    def from_json(cls, value: object) -> "MemorySystem":
        """The memory written by ``to_json``."""
        try:
            file = MemoryFile.model_validate(value)
        except ValidationError as error:
            raise TaskDataError(
                f"this is no memory ({first_problem(error)}); give what to_json wrote"
            ) from error
        memory = cls(file.taxonomy, file.limits)
        try:
            if file.core:
                memory.update_core(file.core.content)
            for entry in file.entries:
                memory._restore(entry)
        except ToolError as error:
            raise TaskDataError(f"this memory breaks its own rules: {error}") from error
        memory._core, memory._core_history = file.core, file.core_history
        memory._next_id = max([file.next_id, *(entry.id + 1 for entry in file.entries)])
        return memory

    def save(self, path: Path | str) -> None:
        """Write the memory as JSON, atomically."""
        write_json(Path(path), self.to_json())

    @classmethod
    def load(cls, path: Path | str) -> "MemorySystem":
        """The memory written by ``save``."""
        try:
            value = json.loads(Path(path).read_bytes())
        except OSError as error:
            raise TaskDataError(f"cannot read {path}: {error.strerror}; check the path") from error
        except ValueError as error:
            raise TaskDataError(f"{path} is no JSON ({error}); write it with save") from error
        return cls.from_json(value)

    def _file(self) -> MemoryFile:
        return MemoryFile.model_construct(
            version=1,
            taxonomy=self.taxonomy,
            limits=self.limits,
            core=self._core,
            core_history=self._core_history,
            next_id=self._next_id,
            entries=tuple(self._entries.values()),
        )

    def _replace(self, old: Entry, changes: dict[str, Any], source_chunk: int | None) -> Entry:
        new = old.model_copy(update=changes)
        if normalized(new.content) == normalized(old.content):
            new = new.model_copy(update={"content": old.content})
        if new == old:
            raise ToolError(f"the update changes nothing of memory {old.id}; change it, or skip")
        self._refuse_duplicate(new)
        earlier = Version(
            content=old.content, timestamp=old.timestamp, source_chunk=old.source_chunk
        )
        provenance = {"history": (*old.history, earlier), "source_chunk": source_chunk}
        new = new.model_copy(update=provenance)
        self._unindex(old)
        self._add(new)
        return new

    def _restore(self, entry: Entry) -> None:
        check_type(entry.type, self.taxonomy)
        check_category(entry.category, self.taxonomy)
        check_text(entry.content, what="content", limit=self.limits.entry_tokens)
        self._refuse_duplicate(entry)
        if entry.id in self._entries:
            raise ToolError(f"memory id {entry.id} occurs twice; an id is never used again")
        self._add(entry)

    def _refuse_duplicate(self, entry: Entry) -> None:
        duplicate = self._ids_by_key.get(self._key(entry), entry.id)
        if duplicate != entry.id:
            raise ToolError(f"memory {duplicate} already says this; update that one, or skip")

    def _key(self, entry: Entry) -> str:
        is_dated = self.taxonomy.entry_types[entry.type].is_dated
        when = (entry.timestamp or "") if is_dated else ""
        return "\n".join((entry.type, when, normalized(entry.content)))

    def _add(self, entry: Entry) -> None:
        self._entries[entry.id] = entry
        self._ids_by_key[self._key(entry)] = entry.id
        self._tokens += entry.tokens
        self._entry_index.add(entry.id, entry.content)
        if entry.category is not None:
            position = self.taxonomy.category_positions[entry.category]
            self._category_index.add(position, entry.content)

    def _unindex(self, entry: Entry) -> None:
        """Remove an entry from keys and indexes; it is still among the entries."""
        del self._ids_by_key[self._key(entry)]
        self._tokens -= entry.tokens
        self._entry_index.remove(entry.id, entry.content)
        if entry.category is not None:
            position = self.taxonomy.category_positions[entry.category]
            self._category_index.remove(position, entry.content)
