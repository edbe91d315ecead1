"""Adapters of a decoding step: two thin matrix products, which keep few of a GPU's units busy.

The first is cut along what it reads, so that many programs share it; the second sums their parts on
the way. As in ``fused``, the kernels are Triton's. Shapes: B rows, E what they read, F what a layer
writes, R ranks of all adapters that read the same, S parts of what is read.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LEAST_PART, MOST_PARTS = 128, 32
"""Numbers of a row that one program reads, and parts that a row is cut into at most."""
ROWS, TILE = 32, 64
"""Rows, and at once numbers, that one program of the first product reads."""
RANKS = 64
"""Ranks that one program of the first product writes."""
LEAST = 16
"""The fewest rows and ranks that a matrix unit takes; the second product takes as many at once."""
COLUMNS = 128
"""Numbers of a row that one program of the second product writes."""


def lower(given_BE: Tensor, down_RE: Tensor) -> Tensor:
    """What the adapters read, in parts that are yet to be summed; (S, B, R) of float32."""
    (rows, width), ranks = given_BE.shape, down_RE.shape[0]
    part = max(LEAST_PART, triton.next_power_of_2(width) // MOST_PARTS)
    parts = triton.cdiv(width, part)
    inner_SBR = given_BE.new_empty(parts, rows, ranks, dtype=torch.float32)
    _lower[(triton.cdiv(rows, ROWS), parts, triton.cdiv(ranks, RANKS))](
        given_BE, down_RE, inner_SBR, rows, width, ranks, given_BE.stride(0),
        PART=part, ROWS=ROWS, RANKS=RANKS, TILE=TILE,
    )  # fmt: skip
    return inner_SBR


@triton.jit
def _lower(
    given, down, inner, rows, width, ranks, stride,
    PART: tl.constexpr, ROWS: tl.constexpr, RANKS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    part = tl.program_id(1)
    rank = tl.program_id(2) * RANKS + tl.arange(0, RANKS)
    is_row, is_rank = row < rows, rank < ranks
    found = tl.zeros([ROWS, RANKS], tl.float32)
    for first in range(0, PART, TILE):
        place = part * PART + first + tl.arange(0, TILE)
        is_in = place < width
        read = given + row[:, None] * stride + place[None, :]
        weight = down + rank[:, None] * width + place[None, :]
        one = tl.load(read, is_row[:, None] & is_in[None, :], 0.0)
        other = tl.load(weight, is_rank[:, None] & is_in[None, :], 0.0)
        found += tl.dot(one, tl.trans(other), input_precision="ieee")
    where = inner + (part * rows + row[:, None]) * ranks + rank[None, :]
    tl.store(where, found, is_row[:, None] & is_rank[None, :])


def lift(inner_SBR: Tensor, start: int, up_FR: Tensor, scale: float, found_BF: Tensor) -> None:
    """Add to ``found_BF`` what the adapter of the ranks from ``start`` writes."""
    parts, rows, ranks = inner_SBR.shape
    width, own = up_FR.shape
    _lift[(triton.cdiv(rows, LEAST), triton.cdiv(width, COLUMNS))](
        inner_SBR, up_FR, found_BF, rows, width, ranks, start, own, found_BF.stride(0), scale,
        parts, PARTS=triton.next_power_of_2(parts), OWN=triton.cdiv(own, LEAST) * LEAST,
        LEAST=LEAST, COLUMNS=COLUMNS,
    )  # fmt: skip


@triton.jit
def _lift(
    inner, up, found, rows, width, ranks, start, own, stride, scale, parts,
    PARTS: tl.constexpr, OWN: tl.constexpr, LEAST: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * LEAST + tl.arange(0, LEAST)).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    part = tl.arange(0, PARTS).to(tl.int64)
    is_row, is_column, is_part = row < rows, column < width, part < parts
    kind = found.dtype.element_ty
    added = tl.zeros([LEAST, COLUMNS], tl.float32)
    for first in range(0, OWN, LEAST):
        rank = first + tl.arange(0, LEAST)
        is_rank = rank < own
        place = (part[:, None] * rows + row[None, :])[:, :, None] * ranks + (start + rank)[
            None, None, :
        ]
        is_in = (is_part[:, None] & is_row[None, :])[:, :, None] & is_rank[None, None, :]
        # Rounded where the same adapter rounds when it is trained.
        lowered = tl.sum(tl.load(inner + place, is_in, 0.0), 0).to(kind)
        weight = up + column[:, None] * own + rank[None, :]
        raised = tl.load(weight, is_column[:, None] & is_rank[None, :], 0.0)
        added += tl.dot(lowered, tl.trans(raised), input_precision="ieee")
    where = found + row[:, None] * stride + column[None, :]
    is_there = is_row[:, None] & is_column[None, :]
    total = tl.load(where, is_there, 0.0).to(tl.float32) + added * scale
    tl.store(where, total.to(kind), is_there)
