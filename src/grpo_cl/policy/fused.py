"""Kernels of a decoding step, each in place of many small ones: on a GPU launching costs most.

They are written in Triton, which comes with PyTorch on CUDA; on a CPU they run with Triton's
interpreter (TRITON_INTERPRET=1). Triton's functions take pointers and strides, so shapes are named
at the functions that call them: B tokens, each of a row, E hidden size, F inner size, H query
heads, J key heads, D width, K tokens of a row.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def add_norm(
    hidden_BE: Tensor, added_BE: Tensor | None, weight_E: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The sum, and its root-mean-square norm times the weight."""
    rows, width = hidden_BE.shape
    normed_BE = torch.empty_like(hidden_BE)
    total_BE = hidden_BE if added_BE is None else torch.empty_like(hidden_BE)
    _add_norm[(rows,)](
        hidden_BE, hidden_BE if added_BE is None else added_BE, weight_E, total_BE, normed_BE,
        width, eps, HAS_ADDED=added_BE is not None, BLOCK=triton.next_power_of_2(width),
    )  # fmt: skip
    return total_BE, normed_BE


@triton.jit
def _add_norm(
    hidden, added, weight, total, normed, width, eps, HAS_ADDED: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * width
    place = tl.arange(0, BLOCK)
    is_in = place < width
    kind = total.dtype.element_ty
    wide = tl.load(hidden + row + place, is_in, 0.0).to(tl.float32)
    if HAS_ADDED:
        # Rounded wherever the model's own norm rounds.
        value = (wide + tl.load(added + row + place, is_in, 0.0).to(tl.float32)).to(kind)
        tl.store(total + row + place, value, is_in)
        wide = value.to(tl.float32)
    scaled = (wide / tl.sqrt(tl.sum(wide * wide) / width + eps)).to(kind).to(tl.float32)
    factor = tl.load(weight + place, is_in, 0.0).to(tl.float32)
    tl.store(normed + row + place, (scaled * factor).to(kind), is_in)


def gated(gate_BF: Tensor, up_BF: Tensor) -> Tensor:
    """SiLU of the gate times the other; either may be part of a wider tensor."""
    rows, width = gate_BF.shape
    found_BF = gate_BF.new_empty(rows, width)
    _gated[(rows, triton.cdiv(width, 1024))](
        gate_BF, up_BF, found_BF, width, gate_BF.stride(0), up_BF.stride(0), BLOCK=1024
    )
    return found_BF


@triton.jit
def _gated(gate, up, found, width, gate_stride, up_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_in = place < width
    kind = found.dtype.element_ty
    wide = tl.load(gate + row * gate_stride + place, is_in, 0.0).to(tl.float32)
    active = (wide * tl.sigmoid(wide)).to(kind).to(tl.float32)
    factor = tl.load(up + row * up_stride + place, is_in, 0.0).to(tl.float32)
    tl.store(found + row * width + place, (active * factor).to(kind), is_in)


def rotate_and_store(
    states: tuple[Tensor, Tensor, Tensor],
    turns: tuple[Tensor, Tensor],
    cache: tuple[Tensor, Tensor],
    where: tuple[Tensor, Tensor],
) -> Tensor:
    """The turned queries (B, H, D); turned keys and the values are written to the cache.

    ``states`` are queries, keys and values (B, H or J, D), each of which may be part of a wider
    tensor, ``turns`` cosines and sines (B, D), ``cache`` keys and values (rows, J, K, D), ``where``
    each new token's row and position.
    """
    query_BHD, key_BJD, _ = states
    rows, heads, width = query_BHD.shape
    turned_BHD, key_heads = query_BHD.new_empty(rows, heads, width), key_BJD.shape[1]
    keys, values = cache
    _rotate_and_store[(rows, heads + 2 * key_heads)](
        *states, turned_BHD, *turns, keys, values, *where,
        heads, key_heads, *(state.stride(0) for state in states),
        keys.stride(0), keys.stride(1), keys.stride(2),
        WIDTH=width, HALF=triton.next_power_of_2(width // 2),
    )  # fmt: skip
    return turned_BHD


@triton.jit
def _rotate_and_store(
    query, key, value, turned, cosines, sines, keys, values, rows, positions,
    heads, key_heads, query_stride, key_stride, value_stride,
    row_stride, head_stride, token_stride,
    WIDTH: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    batch, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    low = tl.arange(0, HALF)
    is_in = low < WIDTH // 2
    high = low + WIDTH // 2
    slot = tl.load(rows + batch) * row_stride + tl.load(positions + batch) * token_stride
    if head >= heads + key_heads:
        source = value + batch * value_stride + (head - heads - key_heads) * WIDTH
        target = values + slot + (head - heads - key_heads) * head_stride
        tl.store(target + low, tl.load(source + low, is_in, 0.0), is_in)
        tl.store(target + high, tl.load(source + high, is_in, 0.0), is_in)
    else:
        if head < heads:
            source = query + batch * query_stride + head * WIDTH
            target = turned + (batch * heads + head) * WIDTH
        else:
            source = key + batch * key_stride + (head - heads) * WIDTH
            target = keys + slot + (head - heads) * head_stride
        turn = batch * WIDTH
        first = tl.load(source + low, is_in, 0.0).to(tl.float32)
        second = tl.load(source + high, is_in, 0.0).to(tl.float32)
        # Cosines and sines of both halves are the same.
        cosine = tl.load(cosines + turn + low, is_in, 0.0).to(tl.float32)
        sine = tl.load(sines + turn + low, is_in, 0.0).to(tl.float32)
        kind = target.dtype.element_ty
        tl.store(target + low, (first * cosine - second * sine).to(kind), is_in)
        tl.store(target + high, (second * cosine + first * sine).to(kind), is_in)
