"""LoRA adapters of a decoding step, in Triton: two thin matrix products.

The first is split along its input (split-K), since thin products keep few multiprocessors busy.
Shapes: B rows, E inputs, F outputs of a layer, R ranks of all adapters with the same input, S
splits of the input.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

MIN_SPLIT, MAX_SPLITS = 128, 32
"""Fewest inputs of a split, and most splits."""
ROWS, TILE = 32, 64
"""Rows of one program, and inputs that ``lora_down`` reads at once."""
RANKS = 64
"""Ranks that one program of ``lora_down`` writes."""
MIN_RANKS = 16
"""Smallest tile of a tensor core's matrix product."""
COLUMNS = 128
"""Outputs that one program of ``lora_up`` writes."""
SUMMED = 128
"""Numbers of the down projections that one program sums over the splits."""


def lora_down(input_BE: Tensor, down_RE: Tensor) -> Tensor:
    """The down projections (B, R), summed in float32 and in the dtype of the input."""
    (rows, width), ranks = input_BE.shape, down_RE.shape[0]
    split = max(MIN_SPLIT, triton.next_power_of_2(width) // MAX_SPLITS)
    splits = triton.cdiv(width, split)
    inner_SBR = input_BE.new_empty(splits, rows, ranks, dtype=torch.float32)
    _lora_down[(triton.cdiv(rows, ROWS), splits, triton.cdiv(ranks, RANKS))](
        input_BE, down_RE, inner_SBR, rows, width, ranks, input_BE.stride(0),
        SPLIT=split, ROWS=ROWS, RANKS=RANKS, TILE=TILE,
    )  # fmt: skip
    inner_BR = input_BE.new_empty(rows, ranks)
    _sum_splits[(triton.cdiv(rows * ranks, SUMMED),)](
        inner_SBR, inner_BR, rows * ranks, splits,
        SPLITS=triton.next_power_of_2(splits), BLOCK=SUMMED,
    )  # fmt: skip
    return inner_BR


@triton.jit
def _lora_down(
    inputs, down, inner, rows, width, ranks, stride,
    SPLIT: tl.constexpr, ROWS: tl.constexpr, RANKS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    split = tl.program_id(1)
    rank = tl.program_id(2) * RANKS + tl.arange(0, RANKS)
    is_row, is_rank = row < rows, rank < ranks
    product = tl.zeros([ROWS, RANKS], tl.float32)
    for first in range(0, SPLIT, TILE):
        column = split * SPLIT + first + tl.arange(0, TILE)
        is_in = column < width
        input_at = inputs + row[:, None] * stride + column[None, :]
        weight_at = down + rank[:, None] * width + column[None, :]
        value = tl.load(input_at, is_row[:, None] & is_in[None, :], 0.0)
        weight = tl.load(weight_at, is_rank[:, None] & is_in[None, :], 0.0)
        product += tl.dot(value, tl.trans(weight), input_precision="ieee")
    at = inner + (split * rows + row[:, None]) * ranks + rank[None, :]
    tl.store(at, product, is_row[:, None] & is_rank[None, :])


@triton.jit
def _sum_splits(inner, summed, size, splits, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    split = tl.arange(0, SPLITS).to(tl.int64)
    is_in = (split < splits)[:, None] & (place < size)[None, :]
    total = tl.sum(tl.load(inner + split[:, None] * size + place[None, :], is_in, 0.0), 0)
    tl.store(summed + place, total.to(summed.dtype.element_ty), place < size)


def lora_up(inner_BR: Tensor, start: int, up_FR: Tensor, scale: float, output_BF: Tensor) -> None:
    """Add to ``output_BF`` the up projection of the adapter whose ranks begin at ``start``."""
    rows, ranks = inner_BR.shape
    width, own_ranks = up_FR.shape
    _lora_up[(triton.cdiv(width, COLUMNS), triton.cdiv(rows, ROWS))](
        inner_BR, up_FR, output_BF, rows, width, ranks, start, own_ranks, output_BF.stride(0),
        scale, RANKS=max(MIN_RANKS, triton.next_power_of_2(own_ranks)), ROWS=ROWS, COLUMNS=COLUMNS,
    )  # fmt: skip


@triton.jit
def _lora_up(
    inner, up, output, rows, width, ranks, start, own_ranks, stride, scale,
    RANKS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    rank = tl.arange(0, RANKS)
    is_row, is_column, is_rank = row < rows, column < width, rank < own_ranks
    at = output + row[:, None] * stride + column[None, :]
    is_out = is_row[:, None] & is_column[None, :]
    before = tl.load(at, is_out, 0.0).to(tl.float32)
    inner_at = inner + row[:, None] * ranks + (start + rank)[None, :]
    lowered = tl.load(inner_at, is_row[:, None] & is_rank[None, :], 0.0)
    weight_at = up + column[:, None] * own_ranks + rank[None, :]
    weight = tl.load(weight_at, is_column[:, None] & is_rank[None, :], 0.0)
    product = tl.dot(lowered, tl.trans(weight), input_precision="ieee")
    tl.store(at, (before + product * scale).to(output.dtype.element_ty), is_out)
