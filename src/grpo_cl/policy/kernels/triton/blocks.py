"""Fused Triton kernels of training: RMSNorm, SwiGLU, RoPE and LSE merge, forward and backward.

Each reads its tensors once, where PyTorch reads them many times. As in ``decode``, shapes are given
in the functions that launch kernels: N tokens, E hidden size, F MLP size, H heads, D head
dimension, Q queries, P programs that share the work.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from grpo_cl.policy.kernels.triton import decode

PROGRAMS = 1024
"""Most programs of the norm's backward pass, each with partial sums of the weight's gradient."""
BLOCK = 1024
"""Columns of a SwiGLU that one program computes."""


def add_norm(
    hidden_NE: Tensor, added_NE: Tensor | None, weight_E: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The sum, and its RMSNorm times the weight."""
    return _AddNorm.apply(hidden_NE, added_NE, weight_E, eps)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    @override
    def forward(
        ctx: Any, hidden_NE: Tensor, added_NE: Tensor | None, weight_E: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        total_NE, normed_NE = decode.add_norm(hidden_NE, added_NE, weight_E, eps)
        ctx.save_for_backward(total_NE, weight_E)
        ctx.eps, ctx.has_added = eps, added_NE is not None
        ctx.set_materialize_grads(False)  # the sum is not always used
        return total_NE, normed_NE

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator's types have no names
        total_NE, weight_E = ctx.saved_tensors
        grad_total_NE, grad_normed_NE = (
            grad if grad is None else grad.contiguous() for grad in grads
        )
        rows, width = total_NE.shape
        programs = min(rows, PROGRAMS)
        grad_input_NE = torch.empty_like(total_NE)
        needs_weight = ctx.needs_input_grad[2]
        sums_PE = total_NE.new_empty(programs if needs_weight else 1, width, dtype=torch.float32)
        _norm_backward[(programs,)](
            total_NE, weight_E, grad_total_NE, grad_normed_NE, grad_input_NE, sums_PE,
            rows, width, ctx.eps, HAS_GRAD_TOTAL=grad_total_NE is not None,
            NEEDS_WEIGHT=needs_weight,
            BLOCK=triton.next_power_of_2(width), num_warps=4 if width <= BLOCK else 16,
        )  # fmt: skip
        grad_weight_E = sums_PE.sum(0).to(weight_E.dtype) if needs_weight else None
        return grad_input_NE, grad_input_NE if ctx.has_added else None, grad_weight_E, None


@triton.jit
def _norm_backward(
    total, weight, grad_total, grad_normed, grad_input, sums, rows, width, eps,
    HAS_GRAD_TOTAL: tl.constexpr, NEEDS_WEIGHT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)
    is_in = column < width
    factor = tl.load(weight + column, is_in, 0.0).to(tl.float32)
    weight_sum = tl.zeros([BLOCK], tl.float32)
    row = tl.program_id(0).to(tl.int64)
    while row < rows:
        at = row * width + column
        value = tl.load(total + at, is_in, 0.0).to(tl.float32)
        grad_output = tl.load(grad_normed + at, is_in, 0.0).to(tl.float32)
        inv_rms = 1.0 / tl.sqrt(tl.sum(value * value) / width + eps)
        scaled = value * inv_rms
        grad_scaled = grad_output * factor
        mean = tl.sum(grad_scaled * scaled) / width
        grad = (grad_scaled - scaled * mean) * inv_rms
        if HAS_GRAD_TOTAL:
            grad += tl.load(grad_total + at, is_in, 0.0).to(tl.float32)
        tl.store(grad_input + at, grad.to(grad_input.dtype.element_ty), is_in)
        weight_sum += grad_output * scaled
        row += tl.num_programs(0)
    if NEEDS_WEIGHT:
        tl.store(sums + tl.program_id(0) * width + column, weight_sum, is_in)


def swiglu(gate_NF: Tensor, up_NF: Tensor) -> Tensor:
    """SiLU of the gate times the up projection."""
    return _Swiglu.apply(gate_NF, up_NF)


class _Swiglu(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, gate_NF: Tensor, up_NF: Tensor) -> Tensor:
        ctx.save_for_backward(gate_NF, up_NF)
        return decode.swiglu(gate_NF, up_NF)

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # as above
        gate_NF, up_NF = ctx.saved_tensors
        grad_gate_NF, grad_up_NF = torch.empty_like(gate_NF), torch.empty_like(up_NF)
        rows, width = gate_NF.shape
        _swiglu_backward[(rows, triton.cdiv(width, BLOCK))](
            gate_NF, up_NF, grads[0].contiguous(), grad_gate_NF, grad_up_NF,
            width, gate_NF.stride(0), up_NF.stride(0), BLOCK=BLOCK,
        )  # fmt: skip
        return grad_gate_NF, grad_up_NF


@triton.jit
def _swiglu_backward(
    gate, up, grad_output, grad_gate, grad_up, width, gate_stride, up_stride, BLOCK: tl.constexpr
):
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_in = column < width
    row = tl.program_id(0).to(tl.int64)
    at = row * width + column
    gate_value = tl.load(gate + row * gate_stride + column, is_in, 0.0).to(tl.float32)
    up_value = tl.load(up + row * up_stride + column, is_in, 0.0).to(tl.float32)
    grad = tl.load(grad_output + at, is_in, 0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate_value)
    dtype = grad_gate.dtype.element_ty
    slope = sigmoid * (1.0 + gate_value * (1.0 - sigmoid))
    tl.store(grad_gate + at, (grad * up_value * slope).to(dtype), is_in)
    tl.store(grad_up + at, (grad * gate_value * sigmoid).to(dtype), is_in)


def apply_rope(states_NHD: Tensor, cos_sin: tuple[Tensor, Tensor]) -> Tensor:
    """Queries or keys rotated by the angles with cosines and sines (N, D)."""
    return _Rope.apply(states_NHD, *cos_sin)


class _Rope(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, states_NHD: Tensor, cosines_ND: Tensor, sines_ND: Tensor) -> Tensor:
        ctx.save_for_backward(cosines_ND, sines_ND)
        return _rotate(states_NHD, cosines_ND, sines_ND, 1)

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # as above
        return _rotate(grads[0], *ctx.saved_tensors, -1), None, None


def _rotate(states_NHD: Tensor, cosines_ND: Tensor, sines_ND: Tensor, direction: int) -> Tensor:
    states_NHD = states_NHD.contiguous()
    rotated_NHD = torch.empty_like(states_NHD)
    tokens, heads, width = states_NHD.shape
    _rope[(tokens,)](
        states_NHD, cosines_ND, sines_ND, rotated_NHD, heads, direction,
        WIDTH=width, HEADS=triton.next_power_of_2(heads), HALF=triton.next_power_of_2(width // 2),
    )  # fmt: skip
    return rotated_NHD


@triton.jit
def _rope(
    states, cosines, sines, rotated, heads, direction,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head, low = tl.arange(0, HEADS), tl.arange(0, HALF)
    is_low = low < WIDTH // 2
    is_in = (head < heads)[:, None] & is_low[None, :]
    at = (token * heads + head)[:, None] * WIDTH + low[None, :]
    # Both halves have the same cosines and sines.
    cosine = tl.load(cosines + token * WIDTH + low, is_low, 0.0).to(tl.float32)[None, :]
    sine = tl.load(sines + token * WIDTH + low, is_low, 0.0).to(tl.float32)[None, :] * direction
    first = tl.load(states + at, is_in, 0.0).to(tl.float32)
    second = tl.load(states + at + WIDTH // 2, is_in, 0.0).to(tl.float32)
    dtype = rotated.dtype.element_ty
    tl.store(rotated + at, (first * cosine - second * sine).to(dtype), is_in)
    tl.store(rotated + at + WIDTH // 2, (second * cosine + first * sine).to(dtype), is_in)


def merge_states(
    output_QHD: Tensor, lse_HQ: Tensor, other_QHD: Tensor, other_lse_HQ: Tensor
) -> None:
    """Merge partial attention over other keys into output and LSE, in place."""
    queries, heads, width = output_QHD.shape
    _merge_states[(queries,)](
        output_QHD, lse_HQ, other_QHD, other_lse_HQ,
        heads, lse_HQ.stride(0), other_lse_HQ.stride(0),
        *output_QHD.stride()[:2], *other_QHD.stride()[:2],
        WIDTH=width, HEADS=triton.next_power_of_2(heads), COLUMNS=triton.next_power_of_2(width),
    )  # fmt: skip


@triton.jit
def _merge_states(
    output, lse, other, other_lse, heads, stride, other_stride,
    query_stride, head_stride, other_query_stride, other_head_stride,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    head, column = tl.arange(0, HEADS).to(tl.int64), tl.arange(0, COLUMNS)
    is_head = head < heads
    lse_1 = tl.load(lse + head * stride + query, is_head, 0.0)
    lse_2 = tl.load(other_lse + head * other_stride + query, is_head, 0.0)
    largest = tl.maximum(lse_1, lse_2)
    merged = largest + tl.log(tl.exp(lse_1 - largest) + tl.exp(lse_2 - largest))
    # FlashAttention's output has the strides of its queries: Phi-3's are one head after another.
    at = (query * query_stride + head * head_stride)[:, None] + column[None, :]
    other_at = (query * other_query_stride + head * other_head_stride)[:, None] + column[None, :]
    is_in = is_head[:, None] & (column < WIDTH)[None, :]
    first = tl.load(output + at, is_in, 0.0).to(tl.float32) * tl.exp(lse_1 - merged)[:, None]
    second = tl.load(other + other_at, is_in, 0.0).to(tl.float32) * tl.exp(lse_2 - merged)[:, None]
    tl.store(output + at, (first + second).to(output.dtype.element_ty), is_in)
    tl.store(lse + head * stride + query, merged, is_head)
