"""A mapping whose copies share what neither has changed since."""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

FEW = 32
"""Changes that a copy takes along; beyond them the layers become one, once for all copies."""


class _Mark(Enum):
    GONE = "gone"
    ABSENT = "absent"


class Layered(Mapping[K, V]):
    """A dict with a cheap ``copy``: a layer that is shared and stays, and changes of one's own."""

    def __init__(self) -> None:
        self._base: dict[K, V] = {}
        self._changes: dict[K, V | _Mark] = {}
        self._count = 0

    def copy(self) -> "Layered[K, V]":
        """An independent mapping with the same items."""
        if len(self._changes) > FEW + len(self._base) // 8:
            self._base, self._changes = dict(self.items()), {}
        twin = Layered[K, V]()
        twin._base, twin._changes = self._base, dict(self._changes)
        twin._count = self._count
        return twin

    def __getitem__(self, key: K) -> V:
        value = self._changes.get(key, _Mark.ABSENT)
        if value is _Mark.ABSENT:
            return self._base[key]
        if value is _Mark.GONE:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        if key in self._changes:
            return self._changes[key] is not _Mark.GONE  # pyright: ignore[reportArgumentType]
        return key in self._base

    def __setitem__(self, key: K, value: V) -> None:
        self._count += key not in self
        self._changes[key] = value

    def __delitem__(self, key: K) -> None:
        if key not in self:
            raise KeyError(key)
        self._count -= 1
        if key in self._base:
            self._changes[key] = _Mark.GONE
        else:
            del self._changes[key]

    def __iter__(self) -> Iterator[K]:
        for key in self._base:
            if self._changes.get(key) is not _Mark.GONE:
                yield key
        for key, value in self._changes.items():
            if key not in self._base and value is not _Mark.GONE:
                yield key

    def __len__(self) -> int:
        return self._count
