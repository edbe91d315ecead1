"""LoRA adapters of a decoding step, in Triton: two thin matrix products.

The first is split along its input (split-K), since thin products keep few multiprocessors busy. The
second is added to an output in place, or read by SwiGLU. Shapes: B rows, E inputs, F outputs, R
ranks of all adapters with the same input, S splits of the input.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from grpo_cl.policy.kernels.lora_linear import AdaptedOutput

MIN_SPLIT, MAX_SPLITS = 128, 32
"""Fewest inputs of a split, and most splits."""
ROWS, TILE = 32, 64
"""Rows of one program, and inputs that ``lora_down`` reads at once."""
RANKS = 64
"""Ranks that one program of ``lora_down`` writes, and that an up projection reads at once."""
MIN_RANKS = 16
"""Smallest tile of a tensor core's matrix product."""
COLUMNS = 128
"""Outputs that one program of an up projection writes."""
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


def lora_up(output: AdaptedOutput) -> None:
    """Add the adapters to the output, in place."""
    (rows, width), ranks = output.output_BF.shape, output.inner_BR.shape[1]
    at_once = _ranks_at_once(ranks)
    _lora_up[(triton.cdiv(width, COLUMNS), triton.cdiv(rows, ROWS))](
        *output, rows, width, ranks, *_strides(output),
        TIMES=triton.cdiv(ranks, at_once), RANKS=at_once, ROWS=ROWS, COLUMNS=COLUMNS,
    )  # fmt: skip


def lora_swiglu(gate: AdaptedOutput, up: AdaptedOutput) -> Tensor:
    """SiLU of the gate times the up projection, both with their adapters."""
    (rows, width), ranks = gate.output_BF.shape, (gate.inner_BR.shape[1], up.inner_BR.shape[1])
    at_once = _ranks_at_once(max(ranks))
    product_BF = gate.output_BF.new_empty(rows, width)
    _lora_swiglu[(triton.cdiv(width, COLUMNS), triton.cdiv(rows, ROWS))](
        *gate, *up, product_BF, rows, width, *ranks, *_strides(gate), *_strides(up),
        GATE_TIMES=triton.cdiv(ranks[0], at_once), UP_TIMES=triton.cdiv(ranks[1], at_once),
        RANKS=at_once, ROWS=ROWS, COLUMNS=COLUMNS,
    )  # fmt: skip
    return product_BF


def _ranks_at_once(ranks: int) -> int:
    return min(RANKS, max(MIN_RANKS, triton.next_power_of_2(ranks)))


def _strides(output: AdaptedOutput) -> list[int]:
    """From row to row of the output, its down and its up projections."""
    return [tensor.stride(0) for tensor in output[:3]]


@triton.jit
def _lora_up(
    output, inner, up, scales, rows, width, ranks, stride, inner_stride, up_stride,
    TIMES: tl.constexpr, RANKS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    value = _adapted_tile(
        output, inner, up, scales, row, column, rows, width, ranks,
        stride, inner_stride, up_stride, TIMES, RANKS, ROWS, COLUMNS,
    )  # fmt: skip
    is_in = (row < rows)[:, None] & (column < width)[None, :]
    tl.store(output + row[:, None] * stride + column[None, :], value, is_in)


@triton.jit
def _lora_swiglu(
    gate, gate_inner, gate_lora, gate_scales, up, up_inner, up_lora, up_scales, product,
    rows, width, gate_ranks, up_ranks, gate_stride, gate_inner_stride, gate_lora_stride,
    up_stride, up_inner_stride, up_lora_stride, GATE_TIMES: tl.constexpr, UP_TIMES: tl.constexpr,
    RANKS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    dtype = product.dtype.element_ty
    value = _adapted_tile(
        gate, gate_inner, gate_lora, gate_scales, row, column, rows, width, gate_ranks,
        gate_stride, gate_inner_stride, gate_lora_stride, GATE_TIMES, RANKS, ROWS, COLUMNS,
    ).to(tl.float32)  # fmt: skip
    # Rounded where ``decode.swiglu`` rounds.
    active = (value * tl.sigmoid(value)).to(dtype).to(tl.float32)
    factor = _adapted_tile(
        up, up_inner, up_lora, up_scales, row, column, rows, width, up_ranks,
        up_stride, up_inner_stride, up_lora_stride, UP_TIMES, RANKS, ROWS, COLUMNS,
    ).to(tl.float32)  # fmt: skip
    is_in = (row < rows)[:, None] & (column < width)[None, :]
    at = product + row[:, None] * width + column[None, :]
    tl.store(at, (active * factor).to(dtype), is_in)


@triton.jit
def _adapted_tile(
    output, inner, up, scales, row, column, rows, width, ranks, stride, inner_stride, up_stride,
    TIMES: tl.constexpr, RANKS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile of an output with its adapter, in the dtype of the output."""
    is_row, is_column = row < rows, column < width
    output_at = output + row[:, None] * stride + column[None, :]
    total = tl.load(output_at, is_row[:, None] & is_column[None, :], 0.0).to(tl.float32)
    if TIMES > 0:
        product = tl.zeros([ROWS, COLUMNS], tl.float32)
        for time in tl.static_range(TIMES):
            rank = time * RANKS + tl.arange(0, RANKS)
            is_rank = rank < ranks
            inner_at = inner + row[:, None] * inner_stride + rank[None, :]
            lowered = tl.load(inner_at, is_row[:, None] & is_rank[None, :], 0.0)
            weight_at = up + column[:, None] * up_stride + rank[None, :]
            weight = tl.load(weight_at, is_column[:, None] & is_rank[None, :], 0.0)
            product += tl.dot(lowered, tl.trans(weight), input_precision="ieee")
        total += product * tl.load(scales + column, is_column, 0.0)[None, :]
    return total.to(output.dtype.element_ty)
