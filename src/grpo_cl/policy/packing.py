"""Sequences laid out in one row without padding, what several begin with only once.

A family's common beginning is one segment of the row, and each member's rest is another that looks
at the beginning and at itself. Shapes: B sequences of T tokens, N tokens of the row.
"""

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_cl.policy.siblings import Family, Ids

Places = slice | Tensor
"""Where in a row something stands, without repetition."""


class Runs(NamedTuple):
    """Queries in runs, each of which looks at the run of keys with its number."""

    queries: Places
    keys: Places
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
            queries=_moved(self.queries, device),
            keys=_moved(self.keys, device),
            query_ends=self.query_ends.to(device),
            key_ends=self.key_ends.to(device),
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


def pack(sequences: Sequence[Ids], families: Sequence[Family]) -> Layout:
    """Lay the sequences out; ``families`` is a partition of their numbers."""
    ids = array("q")
    positions: list[Tensor] = []
    segments: list[range] = []
    looks: list[tuple[range, range]] = []
    places_BT = torch.zeros(len(sequences), max(map(len, sequences)), dtype=torch.long)
    for members, shared in families:
        before = range(len(ids), len(ids) + shared)
        if shared:
            ids.extend(sequences[members[0]][:shared])
            segments.append(before)
            positions.append(torch.arange(shared))
        for number in members:
            part = sequences[number][shared:]
            own = range(len(ids), len(ids) + len(part))
            ids.extend(part)
            segments.append(own)
            positions.append(torch.arange(shared, len(sequences[number])))
            places_BT[number, :shared] = torch.arange(before.start, before.stop)
            places_BT[number, shared : len(sequences[number])] = torch.arange(own.start, own.stop)
        if shared:
            looks.append((range(before.stop, len(ids)), before))
    return Layout(
        ids_1N=torch.frombuffer(ids, dtype=torch.long)[None],
        positions_1N=torch.cat(positions)[None],
        places_BT=places_BT,
        own=_runs(segments, segments, is_causal=True),
        onward=_runs(*zip(*looks, strict=True), is_causal=False) if looks else None,
    )


def _runs(queries: Sequence[range], keys: Sequence[range], *, is_causal: bool) -> Runs:
    return Runs(
        queries=_places(queries),
        keys=_places(keys),
        query_ends=_ends(queries),
        key_ends=_ends(keys),
        longest=(max(map(len, queries)), max(map(len, keys))),
        is_causal=is_causal,
    )


def _places(runs: Sequence[range]) -> Places:
    """A slice where the runs stand in succession, which needs no copy."""
    if all(one.stop == other.start for one, other in pairwise(runs)):
        return slice(runs[0].start, runs[-1].stop)
    return torch.cat([torch.arange(run.start, run.stop) for run in runs])


def _ends(runs: Iterable[range]) -> Tensor:
    return torch.tensor([0, *accumulate(map(len, runs))], dtype=torch.int32)


def _moved(places: Places, device: torch.device) -> Places:
    return places.to(device) if isinstance(places, Tensor) else places
