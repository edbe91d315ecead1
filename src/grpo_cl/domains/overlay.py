"""One parsed database for all episodes of a process; each episode pays for what it touches.

Tables that map a key to a record are copied record by record when one is looked up; other
tables are copied whole when first used. Iterating over a table shows shared records, so a tool may
read what it iterates over and must look up what it changes.
"""

import hashlib
import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, MutableMapping
from functools import cached_property
from itertools import chain
from typing import Any

from pydantic import BaseModel

_DELETED = object()


def clone(value: Any) -> Any:
    """A deep copy of records, lists and dicts; several times faster than ``copy.deepcopy``."""
    if isinstance(value, BaseModel):
        kind = type(value)
        twin = kind.__new__(kind)
        fields = {
            name: clone(field) if isinstance(field, (BaseModel, dict, list)) else field
            for name, field in value.__dict__.items()
        }
        # What pydantic's own copy does, without going through ``__setattr__`` and ``copy``.
        object.__setattr__(twin, "__dict__", fields)
        object.__setattr__(twin, "__pydantic_fields_set__", set(value.__pydantic_fields_set__))
        object.__setattr__(twin, "__pydantic_extra__", None)
        object.__setattr__(twin, "__pydantic_private__", None)
        return twin
    if isinstance(value, dict):
        return {key: clone(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clone(item) for item in value]
    return value


def to_json(value: Any) -> str:
    """The text τ²-bench hashes: keys sorted, anything JSON lacks as ``str``."""
    return json.dumps(_plain(value), sort_keys=True, default=str)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(warnings=False)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def deep_update(base: dict[str, Any], update: dict[str, Any]) -> dict[str, Any]:
    """``base`` with ``update`` merged in, dict by dict."""
    merged = dict(base)
    for key, value in update.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[key] = deep_update(old, value)
        else:
            merged[key] = value
    return merged


class Table(MutableMapping[str, Any]):
    """A table of records over a shared base: looked-up records are this episode's own."""

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
        added = (key for key in self.own if key not in self._base)
        return (key for key in chain(self._base, added) if self.own.get(key) is not _DELETED)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def items(self) -> Any:
        """Every (key, record), for reading."""
        return ((key, self.own.get(key) or self._base[key]) for key in self)

    def values(self) -> Any:
        """Every record, for reading."""
        return (record for _, record in self.items())


class SharedDatabase:
    """A database that is parsed once and never changed."""

    def __init__(self, model: BaseModel) -> None:
        self.model = model
        self.tables: dict[str, Any] = {
            name: getattr(model, name) for name in type(model).model_fields
        }
        self._texts: dict[tuple[str, str], str] = {}

    def updated(self, data: dict[str, Any]) -> "SharedDatabase":
        """A database with ``data`` merged in and validated again."""
        merged = deep_update(self.model.model_dump(), data)
        return SharedDatabase(type(self.model).model_validate(merged))

    def text(self, table: str, key: str) -> str | None:
        """The JSON of a record, or of a whole table that has no records; None if absent."""
        where = (table, key)
        if where not in self._texts:
            value = self.tables[table] if not key else self.tables[table].get(key, _DELETED)
            if value is _DELETED:
                return None
            self._texts[where] = to_json(value)
        return self._texts[where]

    @cached_property
    def records(self) -> dict[str, tuple[list[str], list[str]]]:
        """Of each table of records: its sorted keys and the matching ``"key": record`` texts."""
        found: dict[str, tuple[list[str], list[str]]] = {}
        for name, table in self.tables.items():
            if isinstance(table, dict):
                keys = sorted(table)
                found[name] = (keys, [f"{json.dumps(key)}: {self.text(name, key)}" for key in keys])
        return found

    @cached_property
    def prefixes(self) -> list[Any]:
        """SHA-256 states before each table in sorted order, so that a hash redoes only a tail."""
        states = [hashlib.sha256(b"{")]
        for position, name in enumerate(sorted(self.tables)):
            state = states[-1].copy()
            body = self.text(name, "") or ""
            state.update(_entry(position, name, body))
            states.append(state)
        return states


class EpisodeDatabase:
    """What the tools of one episode see as their database."""

    def __init__(self, shared: SharedDatabase) -> None:
        self._shared = shared
        self._forks: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._shared.tables:
            raise AttributeError(name)
        base = self._shared.tables[name]
        fork = Table(base) if isinstance(base, dict) else clone(base)
        self._forks[name] = fork
        self.__dict__[name] = fork
        return fork

    def changes(self) -> dict[tuple[str, str], str | None]:
        """The records that differ from the base, as JSON; None for one that is gone."""
        found: dict[tuple[str, str], str | None] = {}
        for name in self._forks:
            fork = self.__dict__[name]
            entries = fork.own if isinstance(fork, Table) else {"": fork}
            for key, value in entries.items():
                text = None if value is _DELETED else to_json(value)
                if text != self._shared.text(name, key):
                    found[name, key] = text
        return found

    def base(self, records: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str | None]:
        """The JSON of records as the base has them; None for one that it lacks."""
        return {(name, key): self._shared.text(name, key) for name, key in records}

    def sha256(self) -> str:
        """The hash of the whole database, from the tables before the first change on."""
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
        mine = {key: text for (table, key), text in changes.items() if table == name}
        if name not in self._shared.records:
            return mine.get("") or self._shared.text(name, "") or ""
        keys, texts = self._shared.records[name]
        keys, texts = list(keys), list(texts)
        for key, text in mine.items():
            at = bisect_left(keys, key)
            known = at < len(keys) and keys[at] == key
            keys[at : at + known] = [] if text is None else [key]
            texts[at : at + known] = [] if text is None else [f"{json.dumps(key)}: {text}"]
        return "{" + ", ".join(texts) + "}"


def _entry(position: int, name: str, body: str) -> bytes:
    return f"{', ' if position else ''}{json.dumps(name)}: {body}".encode()
