"""CUDA graphs that append tokens to rows, each for a number of tokens and a length.

What a tool answered is some hundred tokens, and launching the kernels that read them costs far more
than running them. Tokens of any rows go together.

Shapes: N tokens, M tiles of them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from grpo_cl.policy.graphs import captured
from grpo_cl.policy.lean import LeanStep, tiles_of
from grpo_cl.policy.reader import Chunk, SlotReader
from grpo_cl.policy.slots import Span
from grpo_cl.policy.trunks import Place, Used


def columns_of(chunks: Sequence[Chunk]) -> list[list[int]]:
    """Ids, rows, positions, trunks and lengths of the chunks' tokens, one after another."""
    columns: list[list[int]] = [[] for _ in range(5)]
    for row, start, ids, place in chunks:
        rows, trunks, lengths = ([value] * len(ids) for value in (row, *place))
        added = ids, rows, range(start, start + len(ids)), trunks, lengths
        for column, more in zip(columns, added, strict=True):
            column += more
    return columns


class ReadingSize(NamedTuple):
    """What one graph is good for."""

    tokens: int
    length: int
    places: tuple[Place, ...]
    """The trunks that are looked at, and how far."""


class Reading:
    """Appends up to a number of tokens."""

    def __init__(self, reader: SlotReader, lean: LeanStep, size: ReadingSize, pool: Any) -> None:
        self._reader = reader
        self._lean = lean
        self._size = size
        nothing = columns_of([Chunk(reader.slots, 0, [0])])  # goes to the row of nobody's
        self._padding = [column * size.tokens for column in nothing]
        # Every row may have a tile that is not full.
        most = min(size.tokens, size.tokens // lean.tile_size + reader.slots + 1)
        self._columns_5N, self._tiles_2M = (
            torch.zeros(shape, dtype=torch.long, device=reader.device)
            for shape in ((len(nothing), size.tokens), (2, most))
        )
        self._set([[] for _ in nothing])
        self._replay = captured(self._step, reader.device, pool)

    def run(self, columns: Sequence[Sequence[int]]) -> None:
        """Append the tokens of ``columns_of`` chunks."""
        self._set(columns)
        self._replay()

    def _set(self, columns: Sequence[Sequence[int]]) -> None:
        pairs = zip(columns, self._padding, strict=True)
        padded = [[*one, *rest[len(one) :]] for one, rest in pairs]
        tiles = tiles_of(padded[1], self._lean.tile_size)
        tiles += [(0, 0)] * (self._tiles_2M.shape[1] - len(tiles))
        self._columns_5N.copy_(torch.tensor(padded))
        self._tiles_2M.copy_(torch.tensor(tiles).t())

    def _step(self) -> None:
        ids_N, rows_N, positions_N, trunks_N, lengths_N = self._columns_5N
        span = Span(rows_N, rows_N, positions_N, None, self._reader.slots + 1, self._size.length)
        used = Used(self._reader.trunks, self._size.places, trunks_N, lengths_N)
        seen = used if self._size.places else None
        self._lean.read(self._reader.cache, span, ids_N, seen, self._tiles_2M)
