"""Copy-on-write databases: one parsed database per process, shared by all episodes.

A table that maps keys to records copies a record when it is looked up; any other table is copied
as a whole on first use. Iteration yields shared records, so a tool may read them but must look up
by key the records that it changes.
"""

import hashlib
import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, MutableMapping
from functools import cached_property
from typing import Any

from pydantic import BaseModel

from grpo_cl.config import deep_update

_DELETED = object()

_ATOMS = frozenset({str, int, float, bool, type(None)})
"""Types without parts. Most values have one, and asking whether a value is a pydantic model takes
several times as long."""


def clone(value: Any) -> Any:
    """A deep copy of models, lists and dicts; several times faster than ``copy.deepcopy``."""
    if isinstance(value, dict):
        return {key: item if type(item) in _ATOMS else clone(item) for key, item in value.items()}
    if isinstance(value, list):
        return [item if type(item) in _ATOMS else clone(item) for item in value]
    if isinstance(value, BaseModel):
        model_type = type(value)
        copied = model_type.__new__(model_type)
        fields = clone(value.__dict__)
        # Same result as pydantic's own copy, without ``__setattr__`` and ``copy``.
        object.__setattr__(copied, "__dict__", fields)
        object.__setattr__(copied, "__pydantic_fields_set__", set(value.__pydantic_fields_set__))
        object.__setattr__(copied, "__pydantic_extra__", None)
        object.__setattr__(copied, "__pydantic_private__", None)
        return copied
    return value


def to_json(value: Any) -> str:
    """The text that τ²-bench hashes: sorted keys, ``str`` of values that JSON cannot represent."""
    return json.dumps(_to_plain(value), sort_keys=True, default=str)


def _to_plain(value: Any) -> Any:
    if type(value) in _ATOMS:
        return value
    if isinstance(value, dict):
        return {key: _to_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_to_plain(item) for item in value]
    return value.model_dump(warnings=False) if isinstance(value, BaseModel) else value


class Table(MutableMapping[str, Any]):
    """A copy-on-write table over a shared base: a lookup returns the episode's own copy."""

    def __init__(self, base: dict[str, Any]) -> None:
        self._base = base
        self.own: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        record = self.own.get(key)
        if record is None:
            record = self.own[key] = clone(self._base[key])
        elif record is _DELETED:
            raise KeyError(key)
        return record

    def __setitem__(self, key: str, record: Any) -> None:
        self.own[key] = record

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self.own[key] = _DELETED

    def __contains__(self, key: object) -> bool:
        if key in self.own:
            return self.own[key] is not _DELETED  # type: ignore[index]
        return key in self._base

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self.items())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def items(self) -> Any:
        """All (key, record) pairs; read-only."""
        own, base = self.own, self._base
        for key, shared in base.items():
            record = own.get(key) or shared
            if record is not _DELETED:
                yield key, record
        for key, record in own.items():
            if key not in base and record is not _DELETED:
                yield key, record

    def values(self) -> Any:
        """All records; read-only."""
        return (record for _, record in self.items())


class SharedDatabase:
    """A database that is parsed once and never modified."""

    def __init__(self, model: BaseModel) -> None:
        self.model: Any = model
        self.tables: dict[str, Any] = {
            name: getattr(model, name) for name in type(model).model_fields
        }
        self._texts: dict[tuple[str, str], str] = {}

    def updated(self, data: dict[str, Any]) -> "SharedDatabase":
        """A validated copy with ``data`` merged in."""
        merged = deep_update(self.model.model_dump(), data)
        return SharedDatabase(type(self.model).model_validate(merged))

    def text(self, table: str, key: str) -> str | None:
        """The JSON of a record, or of a whole table if ``key`` is empty; None if absent."""
        location = (table, key)
        if location not in self._texts:
            value = self.tables[table] if not key else self.tables[table].get(key, _DELETED)
            if value is _DELETED:
                return None
            self._texts[location] = to_json(value)
        return self._texts[location]

    @cached_property
    def records(self) -> dict[str, tuple[list[str], list[str]]]:
        """For each keyed table: its sorted keys and the matching ``"key": record`` texts."""
        records: dict[str, tuple[list[str], list[str]]] = {}
        for name, table in self.tables.items():
            if isinstance(table, dict):
                keys = sorted(table)
                texts = [f"{json.dumps(key)}: {self.text(name, key)}" for key in keys]
                records[name] = (keys, texts)
        return records

    @cached_property
    def prefixes(self) -> list[Any]:
        """SHA-256 states before each table in sorted order; hashing restarts at a changed table."""
        states = [hashlib.sha256(b"{")]
        for position, name in enumerate(sorted(self.tables)):
            state = states[-1].copy()
            body = self.text(name, "") or ""
            state.update(_entry(position, name, body))
            states.append(state)
        return states


class EpisodeDatabase:
    """The database of one episode: a copy-on-write view of a shared database."""

    def __init__(self, shared: SharedDatabase) -> None:
        self._shared = shared
        self._copies: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._shared.tables:
            raise AttributeError(name)
        base = self._shared.tables[name]
        table = Table(base) if isinstance(base, dict) else clone(base)
        self._copies[name] = table
        self.__dict__[name] = table
        return table

    def changes(self) -> dict[tuple[str, str], str | None]:
        """The records that differ from the base, as JSON; None for a deleted record."""
        changed: dict[tuple[str, str], str | None] = {}
        for name in self._copies:
            table = self.__dict__[name]
            entries = table.own if isinstance(table, Table) else {"": table}
            for key, value in entries.items():
                text = None if value is _DELETED else to_json(value)
                if text != self._shared.text(name, key):
                    changed[name, key] = text
        return changed

    def base(self, records: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str | None]:
        """The JSON of records in the shared base; None for a record that it does not contain."""
        return {(name, key): self._shared.text(name, key) for name, key in records}

    def sha256(self) -> str:
        """The SHA-256 of the whole database, recomputed from the first changed table on."""
        changes = self.changes()
        names = sorted(self._shared.tables)
        changed = {name for name, _ in changes}
        start = next((i for i, name in enumerate(names) if name in changed), len(names))
        state = self._shared.prefixes[start].copy()
        for position, name in enumerate(names[start:], start):
            state.update(_entry(position, name, self._table_text(name, changes)))
        state.update(b"}")
        return state.hexdigest()

    def _table_text(self, name: str, changes: dict[tuple[str, str], str | None]) -> str:
        changed = {key: text for (table, key), text in changes.items() if table == name}
        if name not in self._shared.records:
            return changed.get("") or self._shared.text(name, "") or ""
        keys, texts = self._shared.records[name]
        keys, texts = list(keys), list(texts)
        for key, text in changed.items():
            index = bisect_left(keys, key)
            exists = index < len(keys) and keys[index] == key
            keys[index : index + exists] = [] if text is None else [key]
            texts[index : index + exists] = [] if text is None else [f"{json.dumps(key)}: {text}"]
        return "{" + ", ".join(texts) + "}"


def _entry(position: int, name: str, body: str) -> bytes:
    return f"{', ' if position else ''}{json.dumps(name)}: {body}".encode()
