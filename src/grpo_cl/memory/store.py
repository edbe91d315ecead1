"""A memory: one core text and typed entries, changed only by calls that are right.

Every change is checked before anything is touched, so a refused call leaves the memory exactly as
it was. Copies share what neither has changed since.
"""

import copy
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from grpo_cl.errors import TaskDataError, ToolError
from grpo_cl.memory.entries import Entry, MemoryFile, Version, normalized
from grpo_cl.memory.layered import Layered
from grpo_cl.memory.lexical import Postings
from grpo_cl.memory.rules import (
    Limits,
    check_category,
    check_id,
    check_importance,
    check_text,
    check_timestamp,
    check_type,
)
from grpo_cl.memory.taxonomy import DEFAULT_TYPE, Taxonomy, default_taxonomy
from grpo_cl.memory.tokens import count_tokens
from grpo_cl.rundir import write_json


class MemorySystem:
    """The memory of one episode."""

    def __init__(self, taxonomy: Taxonomy | None = None, limits: Limits | None = None) -> None:
        self.taxonomy = taxonomy or default_taxonomy()
        self.limits = limits or Limits()
        self._core: Version | None = None
        self._core_history: tuple[Version, ...] = ()
        self._entries = Layered[int, Entry]()
        self._keys = Layered[str, int]()
        self._next_id = 1
        self._tokens = 0
        self._words = Postings()
        self._category_words = self.taxonomy.words.copy()

    @property
    def core(self) -> str:
        """The core text; empty until it is first written."""
        return self._core.content if self._core else ""

    @property
    def core_source(self) -> int | None:
        """The chunk whose reading wrote the core text."""
        return self._core.source_chunk if self._core else None

    @property
    def core_history(self) -> tuple[Version, ...]:
        """Earlier core texts, the oldest first."""
        return self._core_history

    @property
    def entries(self) -> Mapping[int, Entry]:
        """All entries by id, in the order they were inserted."""
        return self._entries

    @property
    def words(self) -> Postings:
        """The index over the entries' contents, by id; it follows every edit."""
        return self._words

    @property
    def category_words(self) -> Postings:
        """The index over the categories, by place: their description and their entries."""
        return self._category_words

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
        """Remember something new and return its entry."""
        entry = Entry(
            id=self._next_id,
            type=check_type(type, self.taxonomy),
            category=check_category(category, self.taxonomy),
            content=check_text(content, what="content", limit=self.limits.entry_tokens),
            timestamp=check_timestamp(timestamp),
            importance=check_importance(importance),
            source_chunk=source_chunk,
        )
        self._refuse_double(entry)
        if len(self._entries) >= self.limits.entries:
            raise ToolError(
                f"the memory has {len(self._entries)} entries, the limit is "
                f"{self.limits.entries}; update or delete one instead"
            )
        self._next_id += 1
        self._put(entry)
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
        """Change what is given of an entry, and keep its earlier version in its history."""
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
        """Forget an entry and return what it was."""
        entry = check_id(entry_id, self._entries)
        self._take(entry)
        del self._entries[entry.id]
        return entry

    def update_core(self, text: str, *, source_chunk: int | None = None) -> None:
        """Replace the core text as a whole."""
        content = check_text(text, what="core memory", limit=self.limits.core_tokens)
        if normalized(content) == normalized(self.core):
            raise ToolError("the new core memory says what the old one says; change it, or skip")
        self._tokens += count_tokens(content) - count_tokens(self.core)
        if self._core:
            self._core_history = (*self._core_history, self._core)
        self._core = Version(content=content, source_chunk=source_chunk)

    def tokens(self) -> int:
        """The length of the core text and all contents."""
        return self._tokens

    def copy(self) -> "MemorySystem":
        """An independent memory with the same content, at a cost that does not grow with it."""
        twin = copy.copy(self)
        twin._entries = self._entries.copy()
        twin._keys = self._keys.copy()
        twin._words = self._words.copy()
        twin._category_words = self._category_words.copy()
        return twin

    def hash(self) -> str:
        """SHA-256 of everything that is remembered, with ids and histories."""
        text = json.dumps(self._file().model_dump(exclude={"taxonomy", "limits"}), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Everything needed to go on from here."""
        return self._file().model_dump(mode="json")

    @classmethod
    def from_json(cls, value: object) -> "MemorySystem":
        """The memory that ``to_json`` described."""
        try:
            file = MemoryFile.model_validate(value)
        except ValidationError as error:
            raise TaskDataError(f"this is no memory ({error}); give what to_json wrote") from error
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

    def save(self, path: Path) -> None:
        """Write the memory as JSON, whole or not at all."""
        write_json(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> "MemorySystem":
        """The memory that ``save`` wrote."""
        try:
            value = json.loads(path.read_bytes())
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
        fresh = old.model_copy(update=changes)
        if normalized(fresh.content) == normalized(old.content):
            fresh = fresh.model_copy(update={"content": old.content})
        if fresh == old:
            raise ToolError(f"the update changes nothing of memory {old.id}; change it, or skip")
        self._refuse_double(fresh)
        earlier = Version(
            content=old.content, timestamp=old.timestamp, source_chunk=old.source_chunk
        )
        written = {"history": (*old.history, earlier), "source_chunk": source_chunk}
        fresh = fresh.model_copy(update=written)
        self._take(old)
        self._put(fresh)
        return fresh

    def _restore(self, entry: Entry) -> None:
        check_type(entry.type, self.taxonomy)
        check_category(entry.category, self.taxonomy)
        check_text(entry.content, what="content", limit=self.limits.entry_tokens)
        self._refuse_double(entry)
        if entry.id in self._entries:
            raise ToolError(f"memory id {entry.id} occurs twice; an id is never used again")
        self._put(entry)

    def _refuse_double(self, entry: Entry) -> None:
        double = self._keys.get(self._key(entry), entry.id)
        if double != entry.id:
            raise ToolError(f"memory {double} already says this; update that one, or skip")

    def _key(self, entry: Entry) -> str:
        is_dated = self.taxonomy.entry_types[entry.type].is_dated
        when = (entry.timestamp or "") if is_dated else ""
        return "\n".join((entry.type, when, normalized(entry.content)))

    def _put(self, entry: Entry) -> None:
        self._entries[entry.id] = entry
        self._keys[self._key(entry)] = entry.id
        self._tokens += entry.tokens
        self._words.add(entry.id, entry.content)
        if entry.category is not None:
            self._category_words.add(self._place(entry.category), entry.content)

    def _take(self, entry: Entry) -> None:
        del self._keys[self._key(entry)]
        self._tokens -= entry.tokens
        self._words.remove(entry.id, entry.content)
        if entry.category is not None:
            self._category_words.remove(self._place(entry.category), entry.content)

    def _place(self, category: str) -> int:
        return self.taxonomy.category_index[category]
