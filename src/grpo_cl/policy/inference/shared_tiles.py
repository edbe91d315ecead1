"""Tiles of rows that attend together to the first tokens that they share.

The episodes of a group start with the same prompt. Each has a copy in its own slot, but decoding
reads one of them, once for all rows of a tile. Shapes: B rows.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from grpo_cl.policy.kernels.kv_cache import SlotPrefix

ROWS_PER_TILE = 4
"""A decode graph has one tile for so many rows. Smaller tiles are not worth their programs."""
MIN_TILE_TOKENS = 64
"""Fewest first tokens that rows attend to together: it costs a merge with the rest."""


class SharedTile(NamedTuple):
    """Rows that attend together to the first ``length`` tokens of a slot."""

    slot: int
    length: int
    rows: Sequence[int]


def shared_tiles(prefixes: Sequence[SlotPrefix], size: int) -> list[SharedTile]:
    """Tiles of two to ``size`` rows with the same first tokens, given each row's; largest first.

    At most one tile for ``ROWS_PER_TILE`` rows: the rows of more tiles attend alone.
    """
    by_slot: dict[int, list[int]] = {}
    for row, prefix in enumerate(prefixes):
        if prefix.length >= MIN_TILE_TOKENS:
            by_slot.setdefault(prefix.slot, []).append(row)
    tiles: list[SharedTile] = []
    for slot, rows in by_slot.items():
        lengths = sorted(prefixes[row].length for row in rows)
        # The row in that slot itself shares with it all of its tokens, and so more than any other.
        longest = lengths[-2] if len(rows) > 1 else 0
        rows_by_length: dict[int, list[int]] = {}
        for row in rows:
            rows_by_length.setdefault(min(prefixes[row].length, longest), []).append(row)
        for length, members in rows_by_length.items():
            count = -(-len(members) // size)
            parts = (members[number::count] for number in range(count))
            tiles += [SharedTile(slot, length, part) for part in parts if len(part) > 1]
    tiles.sort(key=lambda tile: -tile.length * len(tile.rows))
    return tiles[: max_shared_tiles(len(prefixes))]


def max_shared_tiles(rows: int) -> int:
    """Most tiles that rows attend to shared tokens in."""
    return -(-rows // ROWS_PER_TILE)


def shared_columns(tiles: Sequence[SharedTile], rows: int) -> list[list[int]]:
    """The numbers of ``SharedTiles``, each column padded to the number of rows."""
    lengths = [0] * rows
    for tile in tiles:
        for row in tile.rows:
            lengths[row] = tile.length
    members = [row for tile in tiles for row in tile.rows]
    counts = [len(tile.rows) for tile in tiles]
    firsts = [0, *accumulate(counts)][: len(tiles)]
    slots = [tile.slot for tile in tiles]
    columns = (members, firsts, counts, slots)
    return [lengths, *([*column, *[0] * (rows - len(column))] for column in columns)]
