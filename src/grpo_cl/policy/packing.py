"""Sequences laid out in one row without padding, what several begin with only once.

A family's common beginning is one segment of the row, and each member's rest is another that looks
at the beginning and at itself. Shapes: B sequences of T tokens, N tokens of the row.
"""

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_cl.policy.siblings import Family, Ids


class Runs(NamedTuple):
    """Queries in runs, each of which looks at the run of keys with its number."""

    queries: slice
    keys: slice
    """Where in a row they stand."""
    query_ends: Tensor
    key_ends: Tensor
    """Where each run ends, counted over all before it, from a 0 on."""
    longest: tuple[int, int]
    """Most queries and most keys of a run."""
    is_causal: bool
    """Whether a query looks at no key after its own place; runs are as long on both sides then."""

    def to(self, device: torch.device) -> "Runs":
        """The same on another device."""
        return self._replace(
            query_ends=self.query_ends.to(device), key_ends=self.key_ends.to(device)
        )


class Layout(NamedTuple):
    """A row, and where the tokens of each sequence are in it."""

    ids_1N: Tensor
    positions_1N: Tensor
    places_BT: Tensor
    """0 on padding."""
    own: Runs
    """Every segment looks at itself."""
    onward: Runs | None
    """Members look at what their family begins with; None where no family begins alike."""

    def to(self, device: torch.device) -> "Layout":
        """The same on another device."""
        return Layout(
            self.ids_1N.to(device),
            self.positions_1N.to(device),
            self.places_BT.to(device),
            self.own.to(device),
            self.onward and self.onward.to(device),
        )


class _Row:
    """A row that segments are added to."""

    def __init__(self) -> None:
        self.ids = array("q")
        self.positions: list[Tensor] = []
        self.segments: list[range] = []

    def add(self, part: Ids, start: int) -> range:
        """Where the tokens stand now, the first of which is its sequence's ``start``-th."""
        places = range(len(self.ids), len(self.ids) + len(part))
        self.ids.extend(part)
        self.positions.append(torch.arange(start, start + len(part)))
        self.segments.append(places)
        return places


def pack(sequences: Sequence[Ids], families: Sequence[Family]) -> Layout:
    """Lay the sequences out; ``families`` is a partition of their numbers.

    All beginnings stand together, and so do all that look at them, so that no look needs a copy.
    """
    row = _Row()
    looks: list[tuple[range, range]] = []
    places_BT = torch.zeros(len(sequences), max(map(len, sequences)), dtype=torch.long)
    for number in (number for members, shared in families if not shared for number in members):
        places_BT[number, : len(sequences[number])] = _arange(row.add(sequences[number], 0))
    together = [family for family in families if family.shared]
    begun = [row.add(sequences[members[0]][:shared], 0) for members, shared in together]
    for (members, shared), before in zip(together, begun, strict=True):
        start = len(row.ids)
        for number in members:
            own = row.add(sequences[number][shared:], shared)
            places_BT[number, : len(sequences[number])] = _arange(before, own)
        looks.append((range(start, len(row.ids)), before))
    return Layout(
        ids_1N=torch.frombuffer(row.ids, dtype=torch.long)[None],
        positions_1N=torch.cat(row.positions)[None],
        places_BT=places_BT,
        own=_runs(row.segments, row.segments, is_causal=True),
        onward=_runs(*zip(*looks, strict=True), is_causal=False) if looks else None,
    )


def _runs(queries: Sequence[range], keys: Sequence[range], *, is_causal: bool) -> Runs:
    return Runs(
        queries=slice(queries[0].start, queries[-1].stop),
        keys=slice(keys[0].start, keys[-1].stop),
        query_ends=_ends(queries),
        key_ends=_ends(keys),
        longest=(max(map(len, queries)), max(map(len, keys))),
        is_causal=is_causal,
    )


def _arange(*runs: range) -> Tensor:
    return torch.cat([torch.arange(run.start, run.stop) for run in runs])


def _ends(runs: Iterable[range]) -> Tensor:
    return torch.tensor([0, *accumulate(map(len, runs))], dtype=torch.int32)
