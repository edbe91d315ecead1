"""Fused Triton kernels of a decoding step: RMSNorm, SwiGLU, and RoPE with the KV-cache write.

Each replaces many small kernels, whose launches cost most of a decoding step on a GPU. On a CPU
they run in Triton's interpreter (TRITON_INTERPRET=1). Triton functions take pointers and strides,
so shapes are given in the functions that launch them: B tokens, one per row, E hidden size, F MLP
size, H query heads, J key heads, D head dimension, K tokens of a row.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def add_norm(
    hidden_BE: Tensor, added_BE: Tensor | None, weight_E: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The sum, and its RMSNorm times the weight."""
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
    column = tl.arange(0, BLOCK)
    is_in = column < width
    dtype = total.dtype.element_ty
    value = tl.load(hidden + row + column, is_in, 0.0).to(tl.float32)
    if HAS_ADDED:
        # Rounded wherever the model's own norm rounds.
        rounded = (value + tl.load(added + row + column, is_in, 0.0).to(tl.float32)).to(dtype)
        tl.store(total + row + column, rounded, is_in)
        value = rounded.to(tl.float32)
    scaled = (value / tl.sqrt(tl.sum(value * value) / width + eps)).to(dtype).to(tl.float32)
    factor = tl.load(weight + column, is_in, 0.0).to(tl.float32)
    tl.store(normed + row + column, (scaled * factor).to(dtype), is_in)


def swiglu(gate_BF: Tensor, up_BF: Tensor) -> Tensor:
    """SiLU of the gate times the up projection; either may be part of a wider tensor."""
    rows, width = gate_BF.shape
    output_BF = gate_BF.new_empty(rows, width)
    _swiglu[(rows, triton.cdiv(width, 1024))](
        gate_BF, up_BF, output_BF, width, gate_BF.stride(0), up_BF.stride(0), BLOCK=1024
    )
    return output_BF


@triton.jit
def _swiglu(gate, up, output, width, gate_stride, up_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_in = column < width
    dtype = output.dtype.element_ty
    value = tl.load(gate + row * gate_stride + column, is_in, 0.0).to(tl.float32)
    active = (value * tl.sigmoid(value)).to(dtype).to(tl.float32)
    factor = tl.load(up + row * up_stride + column, is_in, 0.0).to(tl.float32)
    tl.store(output + row * width + column, (active * factor).to(dtype), is_in)


def rope_and_cache(
    states: tuple[Tensor, Tensor, Tensor],
    cos_sin: tuple[Tensor, Tensor],
    cache: tuple[Tensor, Tensor],
    where: tuple[Tensor, Tensor],
) -> Tensor:
    """Queries after RoPE (B, H, D); keys after RoPE, and the values, are written to the KV cache.

    ``states`` are queries, keys and values (B, H or J, D), each possibly part of a wider tensor,
    ``cos_sin`` cosines and sines (B, D), ``cache`` keys and values (rows, J, K, D), ``where`` each
    new token's row and position.
    """
    query_BHD, key_BJD, _ = states
    rows, heads, width = query_BHD.shape
    rotated_BHD, key_heads = query_BHD.new_empty(rows, heads, width), key_BJD.shape[1]
    keys, values = cache
    _rope_and_cache[(rows, heads + 2 * key_heads)](
        *states, rotated_BHD, *cos_sin, keys, values, *where,
        heads, key_heads, *(state.stride(0) for state in states),
        keys.stride(0), keys.stride(1), keys.stride(2),
        WIDTH=width, HALF=triton.next_power_of_2(width // 2),
    )  # fmt: skip
    return rotated_BHD


@triton.jit
def _rope_and_cache(
    query, key, value, rotated, cosines, sines, keys, values, rows, positions,
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
            target = rotated + (batch * heads + head) * WIDTH
        else:
            source = key + batch * key_stride + (head - heads) * WIDTH
            target = keys + slot + (head - heads) * head_stride
        angle = batch * WIDTH
        first = tl.load(source + low, is_in, 0.0).to(tl.float32)
        second = tl.load(source + high, is_in, 0.0).to(tl.float32)
        # Both halves have the same cosines and sines.
        cosine = tl.load(cosines + angle + low, is_in, 0.0).to(tl.float32)
        sine = tl.load(sines + angle + low, is_in, 0.0).to(tl.float32)
        dtype = target.dtype.element_ty
        tl.store(target + low, (first * cosine - second * sine).to(dtype), is_in)
        tl.store(target + high, (second * cosine + first * sine).to(dtype), is_in)
