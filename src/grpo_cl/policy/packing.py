"""Sequences laid out in one row without padding, what several begin with only once.

A family's common beginning is one segment of the row, and each member's rest is another that looks
at the beginning and at itself. Shapes: B sequences of T tokens, N tokens of the row, M keys of all
segments together.
"""

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_cl.policy.siblings import Family, Ids


class Segment(NamedTuple):
    """Tokens in succession, by their places in the row."""

    start: int
    end: int
    before: range
    """Places of the beginning that the segment goes on from; empty where it begins."""

    @property
    def keys(self) -> list[int]:
        """Places that its last token looks at."""
        return [*self.before, *range(self.start, self.end)]


class Layout(NamedTuple):
    """A row, and where the tokens of each sequence are in it."""

    ids_1N: Tensor
    positions_1N: Tensor
    places_BT: Tensor
    """0 on padding."""
    segments: tuple[Segment, ...]
    keys_M: Tensor
    """Places of the keys of one segment after another."""
    query_ends: Tensor
    key_ends: Tensor
    """Where each segment's queries and keys end, counted over all before it, from a 0 on."""
    longest: tuple[int, int]
    """Most queries and most keys of a segment."""

    def to(self, device: torch.device) -> "Layout":
        """The same on another device."""
        moved = {
            name: value.to(device)
            for name, value in self._asdict().items()
            if isinstance(value, Tensor)
        }
        return self._replace(**moved)


def pack(sequences: Sequence[Ids], families: Sequence[Family]) -> Layout:
    """Lay the sequences out; ``families`` is a partition of their numbers."""
    ids = array("q")
    positions = array("q")
    segments: list[Segment] = []
    places_BT = torch.zeros(len(sequences), max(map(len, sequences)), dtype=torch.long)

    def lay(part: Ids, before: range) -> Segment:
        start = len(ids)
        ids.extend(part)
        positions.extend(range(len(before), len(before) + len(part)))
        segments.append(Segment(start, len(ids), before))
        return segments[-1]

    for members, shared in families:
        before = range(0)
        if shared:
            first = lay(sequences[members[0]][:shared], before)
            before = range(first.start, first.end)
        for number in members:
            own = lay(sequences[number][shared:], before)
            places_BT[number, : len(sequences[number])] = torch.tensor(own.keys)
    queries = [segment.end - segment.start for segment in segments]
    keys = [segment.keys for segment in segments]
    counts = [len(one) for one in keys]
    return Layout(
        ids_1N=torch.tensor(ids)[None],
        positions_1N=torch.tensor(positions)[None],
        places_BT=places_BT,
        segments=tuple(segments),
        keys_M=torch.cat([torch.tensor(one) for one in keys]),
        query_ends=torch.tensor([0, *accumulate(queries)], dtype=torch.int32),
        key_ends=torch.tensor([0, *accumulate(counts)], dtype=torch.int32),
        longest=(max(queries), max(counts)),
    )
