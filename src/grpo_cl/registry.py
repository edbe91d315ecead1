"""Look a plug-in up by name: first in a plain table, then among installed entry points."""

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from grpo_cl.errors import ConfigError

T = TypeVar("T")


def pick(table: Mapping[str, T], name: str, kind: str) -> T:
    """Return ``table[name]``, or say which names exist."""
    if name in table:
        return table[name]
    close = get_close_matches(name, table, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise ConfigError(f"unknown {kind} {name!r}; known: {', '.join(sorted(table))}.{hint}")


def with_plugins(table: Mapping[str, T], group: str) -> dict[str, T]:
    """``table`` and what installed packages add to ``group``, each loaded when it is called."""
    return {**_plugins(group), **table}


def plugin_paths(group: str) -> dict[str, str]:
    """``module:name`` of what installed packages add to ``group``."""
    return {entry.name: entry.value for entry in entry_points(group=group)}


@cache  # looking through the installed packages takes milliseconds
def _plugins(group: str) -> dict[str, Any]:
    def deferred(entry: EntryPoint) -> Any:
        return lambda *args, **options: entry.load()(*args, **options)

    return {entry.name: deferred(entry) for entry in entry_points(group=group)}
