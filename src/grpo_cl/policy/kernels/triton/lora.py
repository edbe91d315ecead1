"""LoRA adapters of a decoding step, in Triton: two thin matrix products (split-K).

The first is split along its input, since thin products keep few multiprocessors busy; the second
sums the splits as it reads them. Shapes: B rows, E inputs, F outputs of a layer, R ranks of all
adapters with the same input, S splits of the input.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

MIN_SPLIT, MAX_SPLITS = 128, 32
"""Fewest inputs of a split, and most splits."""
ROWS, TILE = 32, 64
"""Rows of one program of ``lora_down``, and inputs that it reads at once."""
RANKS = 64
"""Ranks that one program of ``lora_down`` writes."""
MIN_TILE = 16
"""Smallest tile of a tensor core's matrix product; rows of one program of ``lora_up``."""
COLUMNS = 128
"""Outputs that ``lora_up`` writes at once."""
PROGRAMS = 256
"""Programs of ``lora_up`` that are aimed at: each sums the splits again."""
SUMMED = 128
"""Elements of a row, splits times ranks, that are summed at once."""


def lora_down(input_BE: Tensor, down_RE: Tensor) -> Tensor:
    """The down projections, as splits that are still to be summed; (S, B, R) in float32."""
    (rows, width), ranks = input_BE.shape, down_RE.shape[0]
    split = max(MIN_SPLIT, triton.next_power_of_2(width) // MAX_SPLITS)
    splits = triton.cdiv(width, split)
    inner_SBR = input_BE.new_empty(splits, rows, ranks, dtype=torch.float32)
    _lora_down[(triton.cdiv(rows, ROWS), splits, triton.cdiv(ranks, RANKS))](
        input_BE, down_RE, inner_SBR, rows, width, ranks, input_BE.stride(0),
        SPLIT=split, ROWS=ROWS, RANKS=RANKS, TILE=TILE,
    )  # fmt: skip
    return inner_SBR


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


def lora_up(inner_SBR: Tensor, start: int, up_FR: Tensor, scale: float, output_BF: Tensor) -> None:
    """Add to ``output_BF`` the up projection of the adapter whose ranks begin at ``start``."""
    splits, rows, ranks = inner_SBR.shape
    width, own_ranks = up_FR.shape
    blocks, tiles = triton.cdiv(rows, MIN_TILE), triton.cdiv(width, COLUMNS)
    tiles_each = triton.cdiv(tiles * blocks, PROGRAMS)
    padded_ranks = max(MIN_TILE, triton.next_power_of_2(own_ranks))
    at_once = max(1, SUMMED // padded_ranks)
    _lora_up[(blocks, triton.cdiv(tiles, tiles_each))](
        inner_SBR, up_FR, output_BF, rows, width, ranks, start, own_ranks, output_BF.stride(0),
        scale, splits, TIMES=triton.cdiv(splits, at_once), AT_ONCE=at_once, RANKS=padded_ranks,
        TILES=tiles_each, ROWS=MIN_TILE, COLUMNS=COLUMNS,
    )  # fmt: skip


@triton.jit
def _lora_up(
    inner, up, output, rows, width, ranks, start, own_ranks, stride, scale, splits,
    TIMES: tl.constexpr, AT_ONCE: tl.constexpr, RANKS: tl.constexpr, TILES: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    rank = tl.arange(0, RANKS)
    is_row, is_rank = row < rows, rank < own_ranks
    dtype = output.dtype.element_ty
    total = tl.zeros([ROWS, RANKS], tl.float32)
    for time in tl.static_range(TIMES):
        split = (time * AT_ONCE + tl.arange(0, AT_ONCE)).to(tl.int64)
        place = (split[:, None] * rows + row[None, :])[:, :, None] * ranks
        is_in = ((split < splits)[:, None] & is_row[None, :])[:, :, None] & is_rank[None, None, :]
        total += tl.sum(tl.load(inner + place + (start + rank)[None, None, :], is_in, 0.0), 0)
    # Rounded where the training forward pass rounds.
    lowered = total.to(dtype)
    for tile in range(TILES):
        column = (tl.program_id(1) * TILES + tile) * COLUMNS + tl.arange(0, COLUMNS)
        is_column = column < width
        weight_at = up + column[:, None] * own_ranks + rank[None, :]
        weight = tl.load(weight_at, is_column[:, None] & is_rank[None, :], 0.0)
        product = tl.dot(lowered, tl.trans(weight), input_precision="ieee")
        at = output + row[:, None] * stride + column[None, :]
        is_out = is_row[:, None] & is_column[None, :]
        before = tl.load(at, is_out, 0.0).to(tl.float32)
        tl.store(at, (before + product * scale).to(dtype), is_out)
