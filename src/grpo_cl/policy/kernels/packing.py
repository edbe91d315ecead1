"""Sequence packing: a batch as one row without padding, in which a shared prefix occurs once.

The prefix of a group is one segment of the row and each member's suffix is another, which attends
to the prefix and to itself. Segments are described for varlen attention by cumulative lengths
(``cu_seqlens``). Shapes: B sequences of T tokens, N tokens of the row.
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
    prefix_segments: VarlenSegments | None
    """The suffixes of a group attend to its prefix; None if no group shares one."""

    def to(self, device: torch.device) -> "Layout":
        """The same on another device."""
        return Layout(
            self.ids_1N.to(device),
            self.positions_1N.to(device),
            self.gather_index_BT.to(device),
            self.self_segments.to(device),
            self.prefix_segments and self.prefix_segments.to(device),
        )


class _Row:
    """A packed row under construction."""

    def __init__(self) -> None:
        self.ids = array("q")
        self.positions: list[Tensor] = []
        self.segments: list[range] = []

    def add(self, ids: Ids, start: int) -> range:
        """Append a segment whose first token has position ``start``; its range in the row."""
        segment = range(len(self.ids), len(self.ids) + len(ids))
        self.ids.extend(ids)
        self.positions.append(torch.arange(start, start + len(ids)))
        self.segments.append(segment)
        return segment


def pack(sequences: Sequence[Ids], groups: Sequence[PrefixGroup]) -> Layout:
    """Pack the sequences into a row; ``groups`` is a partition of their indices.

    All prefixes are adjacent, and so are all suffixes that attend to them: the second attention
    call works on slices of the row and copies nothing.
    """
    row = _Row()
    suffix_segments: list[range] = []
    index_BT = torch.zeros(len(sequences), max(map(len, sequences)), dtype=torch.long)
    for index in (index for members, shared in groups if not shared for index in members):
        index_BT[index, : len(sequences[index])] = _arange(row.add(sequences[index], 0))
    sharing = [group for group in groups if group.prefix_length]
    prefixes = [row.add(sequences[members[0]][:shared], 0) for members, shared in sharing]
    for (members, shared), prefix in zip(sharing, prefixes, strict=True):
        start = len(row.ids)
        for index in members:
            suffix = row.add(sequences[index][shared:], shared)
            index_BT[index, : len(sequences[index])] = _arange(prefix, suffix)
        suffix_segments.append(range(start, len(row.ids)))
    return Layout(
        ids_1N=torch.frombuffer(row.ids, dtype=torch.long)[None],
        positions_1N=torch.cat(row.positions)[None],
        gather_index_BT=index_BT,
        self_segments=_varlen(row.segments, row.segments, is_causal=True),
        prefix_segments=_varlen(suffix_segments, prefixes, is_causal=False) if prefixes else None,
    )


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
