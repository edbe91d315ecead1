"""Beginnings that many conversations share, read once and kept once.

A *trunk* is the beginning of a conversation: policy text and tool descriptions, thousands of tokens
that every episode of a domain starts with. Rows of the cache then hold only what follows it.
Trunks are divided into pages; a conversation uses as many whole pages as it has in common.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from grpo_cl.policy.siblings import common_beginning
from grpo_cl.policy.slots import SlotCache

PAGE = 256
"""Tokens by which trunks are divided; a GPU works on all pages of a trunk at once."""
LEAST = 1024
"""Shortest beginning kept apart: below it looking at two places costs more than it saves."""
COUNT = 8
"""Trunks kept at once."""


class Place(NamedTuple):
    """How much of which trunk a conversation goes on from."""

    trunk: int = -1
    length: int = 0
    """Tokens, in whole pages."""


NOWHERE = Place()
"""Of a conversation that begins in its own row."""


class Used(NamedTuple):
    """What the rows of one forward pass see of trunks."""

    cache: SlotCache
    places: tuple[Place, ...]
    """The trunks that any row uses, and as much of each as all rows together may see."""
    trunks_B: Tensor
    lengths_B: Tensor
    """Where each row goes on from; where more than one token is read, all from the same place."""

    def seen(self, trunk: int) -> Tensor:
        """How many tokens of a trunk each row sees."""
        return torch.where(self.trunks_B == trunk, self.lengths_B, 0)


class Reader(Protocol):
    """What reads trunks."""

    def sees_trunks(self) -> bool:
        """Whether the model finds a beginning that is kept apart, tried on one."""
        ...

    def plant(self, trunk: int, ids: Sequence[int]) -> None:
        """Fill a trunk."""
        ...


class Trunks:
    """Which beginnings are kept."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._ids: list[list[int]] = []
        self._is_possible: bool | None = None

    def clear(self) -> None:
        """Keep none."""
        self._ids = []

    def place(self, ids: Sequence[int], in_use: Collection[int]) -> Place:
        """Where a conversation that begins with ``ids`` goes on from.

        A beginning that is not there yet is read, over one that is not ``in_use`` if need be.
        """
        whole = (len(ids) - 1) // PAGE * PAGE  # the last token is fed when the reply begins
        if whole < LEAST:
            return NOWHERE
        if self._is_possible is None:
            self._is_possible = self._reader.sees_trunks()
        return self._place(ids, whole, in_use) if self._is_possible else NOWHERE

    def _place(self, ids: Sequence[int], whole: int, in_use: Collection[int]) -> Place:
        places = [
            Place(trunk, common_beginning(ids[:whole], held) // PAGE * PAGE)
            for trunk, held in enumerate(self._ids)
        ]
        best = max(places, key=lambda place: place.length, default=NOWHERE)
        if 2 * best.length < whole:
            free = self._free(in_use)
            if free is not None:
                self._plant(free, list(ids[:whole]))
                return Place(free, whole)
        return best if best.length >= LEAST else NOWHERE

    def _free(self, in_use: Collection[int]) -> int | None:
        if len(self._ids) < COUNT:
            return len(self._ids)
        return next((trunk for trunk in range(COUNT) if trunk not in in_use), None)

    def _plant(self, trunk: int, ids: list[int]) -> None:
        self._reader.plant(trunk, ids)
        self._ids[trunk : trunk + 1] = [ids]
