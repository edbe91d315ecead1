"""Agreement of an episode's final state with the gold actions' final state, leaf by leaf.

A leaf of a record is a scalar value, or an empty list or mapping.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from grpo_cl.envs.base import Environment, State

LeafPath = tuple[str | int, ...]
SerializedRecords = Mapping[tuple[str, str], str | None]
"""JSON texts by (table, key), as in one side of a state."""
Changes = Mapping[tuple[str, tuple[str, str], LeafPath], str | None]
"""New values of the changed leaves by (side, record, path); None for a removed leaf."""


class GoalState:
    """The initial state of a task and the state after its gold actions."""

    def __init__(self, start: State, end: State) -> None:
        self.start, self.end = start, end
        self._changes: Changes | None = None

    def agreement(self, environment: Environment, end: State) -> float:
        """The agreement of an episode with final state ``end``."""
        if end == self.end:
            return 1.0
        if self._changes is None:  # computed for the first failed episode of the task
            self._changes = changes(environment, self.start, self.end)
        return agreement(self._changes, changes(environment, self.start, end))


def agreement(gold: Changes, episode: Changes) -> float:
    """The fraction of leaves changed by either that both changed to the same value; 1 if none.

    Both start from the same state, so a leaf that only one of them changed does not agree.
    """
    leaves = gold.keys() | episode.keys()
    return len(gold.items() & episode.items()) / len(leaves) if leaves else 1.0


def changes(environment: Environment, start: State, end: State) -> Changes:
    """The leaves that differ between two states of one environment."""
    base = environment.base(State({**start.agent, **end.agent}, {**start.user, **end.user}))
    return {
        (side, record, path): text
        for side, initial, before, after in zip(State._fields, base, start, end, strict=True)
        for (record, path), text in changed_leaves(
            {**initial, **before}, {**initial, **after}
        ).items()
    }


def changed_leaves(
    before: SerializedRecords, after: SerializedRecords
) -> dict[tuple[tuple[str, str], LeafPath], str | None]:
    """The leaves that differ between two versions of the same records, with their new values."""
    changed: dict[tuple[tuple[str, str], LeafPath], str | None] = {}
    for record, text in after.items():
        if text != before[record]:
            old, new = _leaves(before[record]), _leaves(text)
            for path, _ in old.items() ^ new.items():
                changed[record, path] = new.get(path)
    return changed


@lru_cache(maxsize=64)  # episodes of a group share initial and many final records
def _leaves(text: str | None) -> dict[LeafPath, str]:
    leaves: dict[LeafPath, str] = {}
    waiting: list[tuple[LeafPath, Any]] = [] if text is None else [((), decode(text))]
    while waiting:
        path, value = waiting.pop()
        if value and isinstance(value, dict):
            waiting += [((*path, key), item) for key, item in value.items()]
        elif value and isinstance(value, list):
            waiting += [((*path, index), item) for index, item in enumerate(value)]
        else:
            leaves[path] = repr(value)  # 3, 3.0 and True are equal in Python, not in a database
    return leaves


def decode(text: str) -> Any:
    """The value of a JSON text, or the text itself if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text  # an environment may store plain text
