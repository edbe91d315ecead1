"""Sequence packing: a batch as one row without padding, in which a shared prefix occurs once.

The prefix of a group is one segment of the row and each member's suffix is another, which attends
to the prefix and to itself. In a group within a group the inner prefix is a segment between the
two. Segments are described for varlen attention by cumulative lengths (``cu_seqlens``). Shapes: B
sequences of T tokens, N tokens of the row.
"""

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_cl.policy.kernels.prefix_groups import Ids, PrefixGroup


class VarlenSegments(NamedTuple):
    """Segments of queries and of keys: the i-th query segment attends to the i-th key segment."""

    queries: slice
    keys: slice
    """The slices of the row that contain all segments."""
    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    """Cumulative segment lengths, starting with 0."""
    max_seqlens: tuple[int, int]
    """Most queries and most keys of a segment."""
    is_causal: bool
    """Whether attention is causal; query and key segments are equally long then."""

    def to(self, device: torch.device) -> "VarlenSegments":
        """The same on another device."""
        return self._replace(
            cu_seqlens_q=self.cu_seqlens_q.to(device), cu_seqlens_k=self.cu_seqlens_k.to(device)
        )


class Layout(NamedTuple):
    """A packed row, and where the tokens of each sequence are in it."""

    ids_1N: Tensor
    positions_1N: Tensor
    gather_index_BT: Tensor
    """Index into the row of each sequence's tokens; 0 on padding."""
    self_segments: VarlenSegments
    """Every segment attends to itself, causally."""
    prefix_segments: tuple[VarlenSegments, ...]
    """Suffixes and inner prefixes attend to the prefixes of their groups, in several calls."""

    def to(self, device: torch.device) -> "Layout":
        """The same on another device."""
        return Layout(
            self.ids_1N.to(device),
            self.positions_1N.to(device),
            self.gather_index_BT.to(device),
            self.self_segments.to(device),
            tuple(segments.to(device) for segments in self.prefix_segments),
        )


class _Row:
    """A packed row under construction."""

    def __init__(self, sequences: Sequence[Ids]) -> None:
        self._sequences = sequences
        self.ids = array("q")
        self.positions: list[Tensor] = []
        self.segments: list[range] = []
        self.index_BT = torch.zeros(len(sequences), max(map(len, sequences)), dtype=torch.long)

    def add_prefix(self, group: PrefixGroup, start: int) -> range:
        """Append the group's prefix from token ``start`` on; its range in the row."""
        return self._add(self._sequences[group.members[0]][: group.prefix_length], start)

    def add_suffixes(self, group: PrefixGroup, prefixes: Sequence[range]) -> range:
        """Append what follows the prefixes in each member that is in no inner group."""
        start = len(self.ids)
        for index in group.outside.members:
            suffix = self._add(self._sequences[index], group.prefix_length)
            self.index_BT[index, : len(self._sequences[index])] = _arange(*prefixes, suffix)
        return range(start, len(self.ids))

    def _add(self, ids: Ids, start: int) -> range:
        """Append a segment, the tokens from ``start`` on; its range in the row."""
        segment = range(len(self.ids), len(self.ids) + len(ids) - start)
        self.ids.extend(ids[start:])
        self.positions.append(torch.arange(start, len(ids)))
        self.segments.append(segment)
        return segment


def pack(sequences: Sequence[Ids], groups: Sequence[PrefixGroup]) -> Layout:
    """Pack the sequences into a row; ``groups`` is a partition of their indices.

    All prefixes are adjacent, and so are all suffixes that attend to them, and the same within a
    group: each attention call works on slices of the row and copies nothing.
    """
    row = _Row(sequences)
    for group in (group for group in groups if not group.prefix_length):
        row.add_suffixes(group, ())
    # Those with inner groups are last, so that their prefixes are next to the inner ones.
    sharing = sorted((g for g in groups if g.prefix_length), key=lambda group: bool(group.inner))
    prefixes = [row.add_prefix(group, 0) for group in sharing]
    inner = [[row.add_prefix(part, g.prefix_length) for part in g.inner] for g in sharing]
    suffixes: list[range] = []
    inner_calls: list[VarlenSegments] = []
    for group, prefix, inners in zip(sharing, prefixes, inner, strict=True):
        own = row.add_suffixes(group, (prefix,))
        pairs = zip(group.inner, inners, strict=True)
        parts = [row.add_suffixes(part, (prefix, inner_prefix)) for part, inner_prefix in pairs]
        suffixes.append(_span([own, *parts]))
        inner_calls += [_varlen(parts, inners, is_causal=False)] if parts else []
    nested = [(_span(i), prefix) for i, prefix in zip(inner, prefixes, strict=True) if i]
    calls = [(suffixes, prefixes), ([i for i, _ in nested], [prefix for _, prefix in nested])]
    return Layout(
        ids_1N=torch.frombuffer(row.ids, dtype=torch.long)[None],
        positions_1N=torch.cat(row.positions)[None],
        gather_index_BT=row.index_BT,
        self_segments=_varlen(row.segments, row.segments, is_causal=True),
        prefix_segments=(
            *(_varlen(queries, keys, is_causal=False) for queries, keys in calls if keys),
            *inner_calls,
        ),
    )


def _span(segments: Sequence[range]) -> range:
    """The range of adjacent segments."""
    return range(segments[0].start, segments[-1].stop)


def _varlen(queries: Sequence[range], keys: Sequence[range], *, is_causal: bool) -> VarlenSegments:
    return VarlenSegments(
        queries=slice(queries[0].start, queries[-1].stop),
        keys=slice(keys[0].start, keys[-1].stop),
        cu_seqlens_q=_cu_seqlens(queries),
        cu_seqlens_k=_cu_seqlens(keys),
        max_seqlens=(max(map(len, queries)), max(map(len, keys))),
        is_causal=is_causal,
    )


def _arange(*segments: range) -> Tensor:
    return torch.cat([torch.arange(segment.start, segment.stop) for segment in segments])


def _cu_seqlens(segments: Iterable[range]) -> Tensor:
    return torch.tensor([0, *accumulate(map(len, segments))], dtype=torch.int32)
