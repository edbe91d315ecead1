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
"""The fewest rows and ranks that a matrix unit takes; a program of the second product has as many
rows."""
COLUMNS = 128
"""Numbers of a row that the second product writes at once."""
PROGRAMS = 256
"""Of the second product, where rows are long enough for so many: each sums the parts anew."""
SUMMED = 128
"""Numbers of a row that are summed at once, which is parts times ranks."""


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
    blocks, tiles = triton.cdiv(rows, LEAST), triton.cdiv(width, COLUMNS)
    each = triton.cdiv(tiles * blocks, PROGRAMS)
    most = max(LEAST, triton.next_power_of_2(own))
    at_once = max(1, SUMMED // most)
    _lift[(blocks, triton.cdiv(tiles, each))](
        inner_SBR, up_FR, found_BF, rows, width, ranks, start, own, found_BF.stride(0), scale,
        parts, TIMES=triton.cdiv(parts, at_once), AT_ONCE=at_once, OWN=most, TILES=each,
        LEAST=LEAST, COLUMNS=COLUMNS,
    )  # fmt: skip


@triton.jit
def _lift(
    inner, up, found, rows, width, ranks, start, own, stride, scale, parts,
    TIMES: tl.constexpr, AT_ONCE: tl.constexpr, OWN: tl.constexpr, TILES: tl.constexpr,
    LEAST: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * LEAST + tl.arange(0, LEAST)).to(tl.int64)
    rank = tl.arange(0, OWN)
    is_row, is_rank = row < rows, rank < own
    kind = found.dtype.element_ty
    total = tl.zeros([LEAST, OWN], tl.float32)
    for time in tl.static_range(TIMES):
        part = (time * AT_ONCE + tl.arange(0, AT_ONCE)).to(tl.int64)
        place = (part[:, None] * rows + row[None, :])[:, :, None] * ranks
        is_in = ((part < parts)[:, None] & is_row[None, :])[:, :, None] & is_rank[None, None, :]
        total += tl.sum(tl.load(inner + place + (start + rank)[None, None, :], is_in, 0.0), 0)
    # Rounded where the same adapter rounds when it is trained.
    lowered = total.to(kind)
    for tile in range(TILES):
        column = (tl.program_id(1) * TILES + tile) * COLUMNS + tl.arange(0, COLUMNS)
        is_column = column < width
        weight = up + column[:, None] * own + rank[None, :]
        raised = tl.load(weight, is_column[:, None] & is_rank[None, :], 0.0)
        added = tl.dot(lowered, tl.trans(raised), input_precision="ieee")
        where = found + row[:, None] * stride + column[None, :]
        is_there = is_row[:, None] & is_column[None, :]
        before = tl.load(where, is_there, 0.0).to(tl.float32)
        tl.store(where, (before + added * scale).to(kind), is_there)
