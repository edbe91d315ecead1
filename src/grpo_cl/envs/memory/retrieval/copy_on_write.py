"""A dict with a cheap copy: copies share all items that neither has changed."""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

MAX_CHANGES = 32
"""Changes, beyond an eighth of the base, at which a copy first merges them into a new base."""


class _Marker(Enum):
    DELETED = "deleted"
    ABSENT = "absent"


class CopyOnWriteDict(Mapping[K, V]):
    """An immutable base shared between copies, and the changes of this copy."""

    def __init__(self) -> None:
        self._base: dict[K, V] = {}
        self._changes: dict[K, V | _Marker] = {}
        self._count = 0

    def copy(self) -> "CopyOnWriteDict[K, V]":
        """An independent mapping with the same items."""
        if len(self._changes) > MAX_CHANGES + len(self._base) // 8:
            self._base, self._changes = dict(self.items()), {}
        copied = CopyOnWriteDict[K, V]()
        copied._base, copied._changes = self._base, dict(self._changes)
        copied._count = self._count
        return copied

    def __getitem__(self, key: K) -> V:
        value = self._changes.get(key, _Marker.ABSENT)
        if value is _Marker.ABSENT:
            return self._base[key]
        if value is _Marker.DELETED:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        if key in self._changes:
            return self._changes[key] is not _Marker.DELETED  # pyright: ignore[reportArgumentType]
        return key in self._base

    def __setitem__(self, key: K, value: V) -> None:
        self._count += key not in self
        self._changes[key] = value

    def __delitem__(self, key: K) -> None:
        if key not in self:
            raise KeyError(key)
        self._count -= 1
        if key in self._base:
            self._changes[key] = _Marker.DELETED
        else:
            del self._changes[key]

    def __iter__(self) -> Iterator[K]:
        for key in self._base:
            if self._changes.get(key) is not _Marker.DELETED:
                yield key
        for key, value in self._changes.items():
            if key not in self._base and value is not _Marker.DELETED:
                yield key

    def __len__(self) -> int:
        return self._count
