"""How far the world is where the gold actions leave it, place by place.

A place is a leaf within a record: a value, or a list or mapping that is empty.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from grpo_cl.domains.base import Environment, State

Path = tuple[str | int, ...]
Texts = Mapping[tuple[str, str], str | None]
"""Records by (table, key), as in one side of a state."""
Changes = Mapping[tuple[str, tuple[str, str], Path], str | None]
"""What the changed places hold afterwards, by (side, record, path); None for one that is gone."""


class Goal:
    """Where a task begins and where its gold actions end."""

    def __init__(self, start: State, end: State) -> None:
        self.start, self.end = start, end
        self._changes: Changes | None = None

    def agreement(self, environment: Environment, end: State) -> float:
        """The agreement of an episode that left its environment at ``end``."""
        if end == self.end:
            return 1.0
        if self._changes is None:  # not needed before an episode of the task fails
            self._changes = changes(environment, self.start, self.end)
        return agreement(self._changes, changes(environment, self.start, end))


def agreement(gold: Changes, made: Changes) -> float:
    """Of the places that either changed, the share that hold the same; 1 where nothing changed.

    Both begin in the same world, so a place that only one of them changed is not the same.
    """
    places = gold.keys() | made.keys()
    return len(gold.items() & made.items()) / len(places) if places else 1.0


def changes(environment: Environment, start: State, end: State) -> Changes:
    """The places that differ between two states of one world."""
    base = environment.base(State({**start.agent, **end.agent}, {**start.user, **end.user}))
    return {
        (side, record, path): text
        for side, known, before, after in zip(State._fields, base, start, end, strict=True)
        for (record, path), text in changed({**known, **before}, {**known, **after}).items()
    }


def changed(before: Texts, after: Texts) -> dict[tuple[tuple[str, str], Path], str | None]:
    """The places that differ between two texts of the same records, and what they hold after."""
    found: dict[tuple[tuple[str, str], Path], str | None] = {}
    for record, text in after.items():
        if text != before[record]:
            old, new = _leaves(before[record]), _leaves(text)
            for path, _ in old.items() ^ new.items():
                found[record, path] = new.get(path)
    return found


@lru_cache(maxsize=64)  # the episodes of a group begin alike, and many end alike
def _leaves(text: str | None) -> dict[Path, str]:
    found: dict[Path, str] = {}
    waiting: list[tuple[Path, Any]] = [] if text is None else [((), decoded(text))]
    while waiting:
        path, value = waiting.pop()
        if value and isinstance(value, dict):
            waiting += [((*path, key), item) for key, item in value.items()]
        elif value and isinstance(value, list):
            waiting += [((*path, place), item) for place, item in enumerate(value)]
        else:
            found[path] = repr(value)  # 3, 3.0 and True are equal in Python and not in a database
    return found


def decoded(text: str) -> Any:
    """What JSON says, or the text itself where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text  # a world may keep plain text
