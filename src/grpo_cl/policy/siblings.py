"""Trajectories that begin alike, so that what they share is computed once.

The episodes of a group share the policy text, the tools and the ticket, and go on sharing as long
as the agent writes the same: in tool use most tokens of a batch are repetitions.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

SHORTEST = 32
"""Tokens below which a pass of its own for the beginning costs more than it saves."""

Ids = Sequence[int]


class Family(NamedTuple):
    """Sequences, by their numbers, and how many tokens all of them begin with."""

    members: tuple[int, ...]
    shared: int


def families(sequences: Sequence[Ids]) -> list[Family]:
    """A partition into families that leaves the fewest tokens to compute."""
    order = sorted(range(len(sequences)), key=lambda number: tuple(sequences[number]))
    return _best(sequences, order).families if order else []


def common_prefix(sequences: Sequence[Ids]) -> int:
    """Tokens that all sequences begin with, and after which each has at least one more."""
    first, last = min(map(tuple, sequences)), max(map(tuple, sequences))
    limit = min(map(len, sequences)) - 1
    return next((place for place in range(limit) if first[place] != last[place]), max(limit, 0))


class _Choice(NamedTuple):
    tokens: int
    families: list[Family]


def _best(sequences: Sequence[Ids], order: list[int]) -> _Choice:
    """The best partition of neighbours in lexical order."""
    if len(order) == 1:
        return _Choice(len(sequences[order[0]]), [Family((order[0],), 0)])
    shared = common_prefix([sequences[number] for number in order])
    branches = _branches(sequences, order, shared)
    apart = [_best(sequences, branch) for branch in branches]
    # A branch stays where going on from here costs it no more than beginning by itself.
    members: list[int] = []
    left: list[_Choice] = []
    for branch, own in zip(branches, apart, strict=True):
        if sum(len(sequences[number]) - shared for number in branch) <= own.tokens:
            members += branch
        else:
            left.append(own)
    rests = sum(len(sequences[number]) - shared for number in members)
    tokens = shared + rests + sum(own.tokens for own in left)
    if shared < SHORTEST or tokens >= sum(own.tokens for own in apart):
        return _joined(apart)
    return _Choice(tokens, [Family(tuple(members), shared), *_joined(left).families])


def _branches(sequences: Sequence[Ids], order: list[int], shared: int) -> list[list[int]]:
    """The sequences by their first token after the shared ones."""
    branches = [
        list(part) for _, part in groupby(order, key=lambda number: sequences[number][shared])
    ]
    # Where one ends and the others go on alike, no token tells them apart.
    return branches if len(branches) > 1 else [order[:1], order[1:]]


def _joined(choices: Sequence[_Choice]) -> _Choice:
    found = [family for choice in choices for family in choice.families]
    return _Choice(sum(choice.tokens for choice in choices), found)
