"""Trajectories that begin alike, so that what they share is computed once.

The episodes of a group share the policy text, the tools and the ticket, and go on sharing as long
as the agent writes the same: in tool use most tokens of a batch are repetitions.
"""

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

SHORTEST = 32
"""Tokens from which a beginning is worth a segment of its own, which members look at besides."""
ITEM = 4
"""Bytes of a token's number."""

Ids = Sequence[int]


class Family(NamedTuple):
    """Sequences, by their numbers, and how many tokens all of them begin with."""

    members: tuple[int, ...]
    shared: int


def families(sequences: Sequence[Ids]) -> list[Family]:
    """A partition into families that leaves the fewest tokens to compute."""
    # Numbers with the highest byte first: bytes compare as the sequences do, in no time.
    keys = [struct.pack(f">{len(ids)}I", *ids) for ids in sequences]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    alike = [common_beginning(keys[one], keys[other], item=ITEM) for one, other in pairwise(order)]
    lengths = [len(sequences[number]) for number in order]
    return _best(_Row(order, lengths, alike)).families if order else []


def common_beginning(one: Ids, other: Ids, *, item: int = 1) -> int:
    """Tokens of ``item`` places that both begin with; slices compare faster than a loop."""
    low, high = 0, min(len(one), len(other)) // item
    while low < high:  # alike up to low, and not beyond high
        middle = (low + high + 1) // 2
        span = slice(low * item, middle * item)
        if one[span] == other[span]:
            low = middle
        else:
            high = middle - 1
    return low


class _Row(NamedTuple):
    """Sequences in lexical order."""

    numbers: list[int]
    lengths: list[int]
    alike: list[int]
    """Tokens that each and the next begin with; one fewer than there are sequences."""

    @property
    def shared(self) -> int:
        """Tokens that all begin with, and after which each has at least one more."""
        return max(0, min(*self.alike, min(self.lengths) - 1))

    def branches(self, shared: int) -> "list[_Row]":
        """The sequences by their first token after the shared ones."""
        cuts = [place + 1 for place, count in enumerate(self.alike) if count <= shared]
        # Where one ends and the others go on alike, no token tells them apart.
        bounds = pairwise([0, *(cuts or [1]), len(self.numbers)])
        return [
            _Row(self.numbers[a:b], self.lengths[a:b], self.alike[a : b - 1]) for a, b in bounds
        ]

    def after(self, shared: int) -> int:
        """Tokens of all after the shared ones."""
        return sum(self.lengths) - shared * len(self.lengths)


class _Choice(NamedTuple):
    tokens: int
    families: list[Family]


def _best(row: _Row) -> _Choice:
    """The best partition of neighbours in lexical order."""
    if len(row.numbers) == 1:
        return _Choice(row.lengths[0], [Family((row.numbers[0],), 0)])
    shared = row.shared
    branches = row.branches(shared)
    apart = [_best(branch) for branch in branches]
    # A branch stays where going on from here costs it no more than beginning by itself.
    members: list[int] = []
    tokens = shared
    left: list[_Choice] = []
    for branch, own in zip(branches, apart, strict=True):
        rest = branch.after(shared)
        if rest <= own.tokens:
            members += branch.numbers
            tokens += rest
        else:
            left.append(own)
    alone, leaving = _joined(apart), _joined(left)
    tokens += leaving.tokens
    if shared < SHORTEST or tokens >= alone.tokens:
        return alone
    return _Choice(tokens, [Family(tuple(members), shared), *leaving.families])


def _joined(choices: Sequence[_Choice]) -> _Choice:
    found = [family for choice in choices for family in choice.families]
    return _Choice(sum(choice.tokens for choice in choices), found)
