"""CUDA graphs that append tokens to rows, each for a number of tokens and a length.

What a tool answered is some hundred tokens, and launching the kernels that read them costs far more
than running them. Every token looks for itself, so those of any rows go together.

Shapes: N tokens.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from grpo_cl.policy.graphs import captured
from grpo_cl.policy.lean import LeanStep
from grpo_cl.policy.reader import Chunk, SlotReader
from grpo_cl.policy.slots import Span
from grpo_cl.policy.trunks import NOWHERE, Place, Used


class Token(NamedTuple):
    """One token to be read, and where."""

    id: int
    row: int
    position: int
    place: Place = NOWHERE

    @property
    def column(self) -> tuple[int, ...]:
        """All of it as numbers."""
        return (self.id, self.row, self.position, *self.place)


def tokens_of(chunks: Sequence[Chunk]) -> list[Token]:
    """The tokens of the chunks, one after another."""
    return [
        Token(token, chunk.row, chunk.start + number, chunk.place)
        for chunk in chunks
        for number, token in enumerate(chunk.ids)
    ]


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
        self._nothing = Token(0, reader.slots, 0)  # goes to the row of nobody's
        columns_N5 = torch.tensor([self._nothing.column] * size.tokens, device=reader.device)
        self._columns_5N = columns_N5.t().contiguous()
        self._replay = captured(self._step, reader.device, pool)

    def run(self, tokens: Sequence[Token]) -> None:
        """Append the tokens; of a row in order."""
        columns = [token.column for token in tokens]
        columns += [self._nothing.column] * (self._size.tokens - len(columns))
        self._columns_5N.copy_(torch.tensor(list(zip(*columns, strict=True))))
        self._replay()

    def _step(self) -> None:
        ids_N, rows_N, positions_N, trunks_N, lengths_N = self._columns_5N
        span = Span(rows_N, rows_N, positions_N, None, self._reader.slots + 1, self._size.length)
        used = Used(self._reader.trunks, self._size.places, trunks_N, lengths_N)
        self._lean.read(self._reader.cache, span, ids_N, used if self._size.places else None)
