"""Groups of sequences with a common prefix, so that the prefix is computed once per group.

The episodes of a task share the policy text, the tools and the ticket, and then every token until
the agent's replies differ: in tool use most tokens of a batch are repetitions.
"""

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from grpo_cl.gpu_memory.constants import MIN_SHARED_TOKENS

ITEM = 4
"""Bytes of a token id."""
MIN_OUTER_TOKENS = 4096
"""Shortest prefix within which groups are formed again: they cost further attention calls."""

Ids = Sequence[int]


class PrefixGroup(NamedTuple):
    """Indices of sequences, and the number of tokens of their common prefix."""

    members: tuple[int, ...]
    prefix_length: int
    inner: "tuple[PrefixGroup, ...]" = ()
    """Groups of members that share more; their prefixes begin with this one."""

    @property
    def outside(self) -> "PrefixGroup":
        """The members that are in no inner group."""
        in_inner = {index for part in self.inner for index in part.members}
        members = tuple(index for index in self.members if index not in in_inner)
        return PrefixGroup(members, self.prefix_length)


def nested_groups(sequences: Sequence[Ids]) -> list[PrefixGroup]:
    """The groups of ``group_by_prefix``, and within long prefixes the groups that share more.

    The tasks of a domain have the policy text and the tools in common, and the episodes of a task
    its ticket too.
    """
    return [_with_inner(sequences, group) for group in group_by_prefix(sequences)]


def _with_inner(sequences: Sequence[Ids], group: PrefixGroup) -> PrefixGroup:
    members, shared, _ = group
    if shared < MIN_OUTER_TOKENS:
        return group
    found = group_by_prefix([sequences[index][shared:] for index in members])
    inner = (
        PrefixGroup(tuple(members[place] for place in part.members), shared + part.prefix_length)
        for part in found
        if part.prefix_length
    )
    return group._replace(inner=tuple(inner))


def group_by_prefix(sequences: Sequence[Ids]) -> list[PrefixGroup]:
    """The partition into groups that leaves the fewest tokens to compute."""
    # Big-endian bytes sort and compare as the sequences do, but much faster.
    keys = [struct.pack(f">{len(ids)}I", *ids) for ids in sequences]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    common = [
        common_prefix_length(keys[first], keys[second], item=ITEM)
        for first, second in pairwise(order)
    ]
    lengths = [len(sequences[index]) for index in order]
    return _best_partition(_SortedRun(order, lengths, common)).groups if order else []


def common_prefix_length(first: Ids, second: Ids, *, item: int = 1) -> int:
    """Tokens of the common prefix, each of ``item`` elements; bisects, as slices compare fast."""
    low, high = 0, min(len(first), len(second)) // item
    while low < high:  # the common prefix has at least low and at most high tokens
        middle = (low + high + 1) // 2
        part = slice(low * item, middle * item)
        if first[part] == second[part]:
            low = middle
        else:
            high = middle - 1
    return low


class _SortedRun(NamedTuple):
    """Neighbouring sequences in lexicographic order."""

    indices: list[int]
    lengths: list[int]
    common: list[int]
    """Common prefix length of each sequence and the next; one element fewer than sequences."""

    @property
    def prefix_length(self) -> int:
        """Tokens of the prefix common to all, leaving each at least one token."""
        return max(0, min(*self.common, min(self.lengths) - 1))

    def split(self, prefix_length: int) -> "list[_SortedRun]":
        """The sequences by their first token after the prefix."""
        cuts = [place + 1 for place, count in enumerate(self.common) if count <= prefix_length]
        # If the shortest sequence is a prefix of the others, no token separates them.
        bounds = pairwise([0, *(cuts or [1]), len(self.indices)])
        return [
            _SortedRun(self.indices[a:b], self.lengths[a:b], self.common[a : b - 1])
            for a, b in bounds
        ]

    def suffix_tokens(self, prefix_length: int) -> int:
        """Tokens of all sequences after the prefix."""
        return sum(self.lengths) - prefix_length * len(self.lengths)


class _Partition(NamedTuple):
    tokens: int
    groups: list[PrefixGroup]


def _best_partition(run: _SortedRun) -> _Partition:
    if len(run.indices) == 1:
        return _Partition(run.lengths[0], [PrefixGroup((run.indices[0],), 0)])
    prefix_length = run.prefix_length
    branches = run.split(prefix_length)
    partitions = [_best_partition(branch) for branch in branches]
    # A branch joins this group if its suffixes cost no more than its own best partition.
    members: list[int] = []
    tokens = prefix_length
    leaving: list[_Partition] = []
    for branch, partition in zip(branches, partitions, strict=True):
        suffix_tokens = branch.suffix_tokens(prefix_length)
        if suffix_tokens <= partition.tokens:
            members += branch.indices
            tokens += suffix_tokens
        else:
            leaving.append(partition)
    without_group, remainder = _union(partitions), _union(leaving)
    tokens += remainder.tokens
    if prefix_length < MIN_SHARED_TOKENS or tokens >= without_group.tokens:
        return without_group
    return _Partition(tokens, [PrefixGroup(tuple(members), prefix_length), *remainder.groups])


def _union(partitions: Sequence[_Partition]) -> _Partition:
    groups = [group for partition in partitions for group in partition.groups]
    return _Partition(sum(partition.tokens for partition in partitions), groups)
