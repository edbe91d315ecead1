"""Kernels of a layer's pass forward and back, besides its matrix products and attention.

Each goes once over what PyTorch goes over many times. As ``fused`` they are written in Triton, and
run in its interpreter on a CPU; Triton's functions take pointers and strides, so shapes are named
at the functions that call them: N tokens, E hidden size, F inner size, H heads, D width, P
programs that share the work.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from grpo_cl.policy import fused

PROGRAMS = 1024
"""Programs that the rows of a norm are dealt to on the way back, each with sums of its own."""
BLOCK = 1024
"""Numbers of a gate that one program takes."""


def add_norm(
    hidden_NE: Tensor, added_NE: Tensor | None, weight_E: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The sum, and its root-mean-square norm times the weight."""
    return _AddNorm.apply(hidden_NE, added_NE, weight_E, eps)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    @override
    def forward(
        ctx: Any, hidden_NE: Tensor, added_NE: Tensor | None, weight_E: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        total_NE, normed_NE = fused.add_norm(hidden_NE, added_NE, weight_E, eps)
        ctx.save_for_backward(total_NE, weight_E)
        ctx.eps, ctx.has_added = eps, added_NE is not None
        ctx.set_materialize_grads(False)  # the sum is not always used
        return total_NE, normed_NE

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator's types have no names
        total_NE, weight_E = ctx.saved_tensors
        to_total_NE, to_normed_NE = (grad if grad is None else grad.contiguous() for grad in grads)
        rows, width = total_NE.shape
        programs = min(rows, PROGRAMS)
        found_NE = torch.empty_like(total_NE)
        learns = ctx.needs_input_grad[2]
        sums_PE = total_NE.new_empty(programs if learns else 1, width, dtype=torch.float32)
        _norm_back[(programs,)](
            total_NE, weight_E, to_total_NE, to_normed_NE, found_NE, sums_PE,
            rows, width, ctx.eps, IS_USED=to_total_NE is not None, LEARNS=learns,
            BLOCK=triton.next_power_of_2(width), num_warps=4 if width <= BLOCK else 16,
        )  # fmt: skip
        to_weight_E = sums_PE.sum(0).to(weight_E.dtype) if learns else None
        return found_NE, found_NE if ctx.has_added else None, to_weight_E, None


@triton.jit
def _norm_back(
    total, weight, to_total, to_normed, found, sums,
    rows, width, eps, IS_USED: tl.constexpr, LEARNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.arange(0, BLOCK)
    is_in = place < width
    factor = tl.load(weight + place, is_in, 0.0).to(tl.float32)
    kept = tl.zeros([BLOCK], tl.float32)
    row = tl.program_id(0).to(tl.int64)
    while row < rows:
        at = row * width + place
        value = tl.load(total + at, is_in, 0.0).to(tl.float32)
        given = tl.load(to_normed + at, is_in, 0.0).to(tl.float32)
        shrink = 1.0 / tl.sqrt(tl.sum(value * value) / width + eps)
        scaled = value * shrink
        to_scaled = given * factor
        along = tl.sum(to_scaled * scaled) / width
        grad = (to_scaled - scaled * along) * shrink
        if IS_USED:
            grad += tl.load(to_total + at, is_in, 0.0).to(tl.float32)
        tl.store(found + at, grad.to(found.dtype.element_ty), is_in)
        kept += given * scaled
        row += tl.num_programs(0)
    if LEARNS:
        tl.store(sums + tl.program_id(0) * width + place, kept, is_in)


def gated(gate_NF: Tensor, up_NF: Tensor) -> Tensor:
    """SiLU of the gate times the other."""
    return _Gated.apply(gate_NF, up_NF)


class _Gated(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, gate_NF: Tensor, up_NF: Tensor) -> Tensor:
        ctx.save_for_backward(gate_NF, up_NF)
        return fused.gated(gate_NF, up_NF)

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # as above
        gate_NF, up_NF = ctx.saved_tensors
        to_gate_NF, to_up_NF = torch.empty_like(gate_NF), torch.empty_like(up_NF)
        rows, width = gate_NF.shape
        _gate_back[(rows, triton.cdiv(width, BLOCK))](
            gate_NF, up_NF, grads[0].contiguous(), to_gate_NF, to_up_NF, width, BLOCK=BLOCK
        )
        return to_gate_NF, to_up_NF


@triton.jit
def _gate_back(gate, up, given, to_gate, to_up, width, BLOCK: tl.constexpr):
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_in = place < width
    at = tl.program_id(0).to(tl.int64) * width + place
    value = tl.load(gate + at, is_in, 0.0).to(tl.float32)
    other = tl.load(up + at, is_in, 0.0).to(tl.float32)
    grad = tl.load(given + at, is_in, 0.0).to(tl.float32)
    share = tl.sigmoid(value)
    kind = to_gate.dtype.element_ty
    slope = share * (1.0 + value * (1.0 - share))
    tl.store(to_gate + at, (grad * other * slope).to(kind), is_in)
    tl.store(to_up + at, (grad * value * share).to(kind), is_in)


def turned(states_NHD: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Queries or keys, turned by cosines and sines (N, D)."""
    return _Turned.apply(states_NHD, *turns)


class _Turned(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, states_NHD: Tensor, cosines_ND: Tensor, sines_ND: Tensor) -> Tensor:
        ctx.save_for_backward(cosines_ND, sines_ND)
        return _turn(states_NHD, cosines_ND, sines_ND, 1)

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # as above
        return _turn(grads[0], *ctx.saved_tensors, -1), None, None


def _turn(states_NHD: Tensor, cosines_ND: Tensor, sines_ND: Tensor, direction: int) -> Tensor:
    states_NHD = states_NHD.contiguous()
    found_NHD = torch.empty_like(states_NHD)
    tokens, heads, width = states_NHD.shape
    _turn_one[(tokens,)](
        states_NHD, cosines_ND, sines_ND, found_NHD, heads, direction,
        WIDTH=width, HEADS=triton.next_power_of_2(heads), HALF=triton.next_power_of_2(width // 2),
    )  # fmt: skip
    return found_NHD


@triton.jit
def _turn_one(
    states, cosines, sines, found, heads, direction,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head, low = tl.arange(0, HEADS), tl.arange(0, HALF)
    is_low = low < WIDTH // 2
    is_in = (head < heads)[:, None] & is_low[None, :]
    at = (token * heads + head)[:, None] * WIDTH + low[None, :]
    # Cosines and sines of both halves are the same.
    cosine = tl.load(cosines + token * WIDTH + low, is_low, 0.0).to(tl.float32)[None, :]
    sine = tl.load(sines + token * WIDTH + low, is_low, 0.0).to(tl.float32)[None, :] * direction
    first = tl.load(states + at, is_in, 0.0).to(tl.float32)
    second = tl.load(states + at + WIDTH // 2, is_in, 0.0).to(tl.float32)
    kind = found.dtype.element_ty
    tl.store(found + at, (first * cosine - second * sine).to(kind), is_in)
    tl.store(found + at + WIDTH // 2, (second * cosine + first * sine).to(kind), is_in)


def join_looks(output_QHD: Tensor, lse_HQ: Tensor, more_QHD: Tensor, more_lse_HQ: Tensor) -> None:
    """Make of what queries saw what they would have seen with ``more`` in the same look."""
    queries, heads, width = output_QHD.shape
    _join_one[(queries,)](
        output_QHD, lse_HQ, more_QHD, more_lse_HQ,
        heads, lse_HQ.stride(0), more_lse_HQ.stride(0),
        WIDTH=width, HEADS=triton.next_power_of_2(heads), PLACES=triton.next_power_of_2(width),
    )  # fmt: skip


@triton.jit
def _join_one(
    output, sums, more, more_sums, heads, stride, more_stride,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    head, place = tl.arange(0, HEADS), tl.arange(0, PLACES)
    is_head = head < heads
    one = tl.load(sums + head * stride + query, is_head, 0.0)
    other = tl.load(more_sums + head * more_stride + query, is_head, 0.0)
    largest = tl.maximum(one, other)
    total = largest + tl.log(tl.exp(one - largest) + tl.exp(other - largest))
    at = (query * heads + head)[:, None] * WIDTH + place[None, :]
    is_in = is_head[:, None] & (place < WIDTH)[None, :]
    first = tl.load(output + at, is_in, 0.0).to(tl.float32) * tl.exp(one - total)[:, None]
    second = tl.load(more + at, is_in, 0.0).to(tl.float32) * tl.exp(other - total)[:, None]
    tl.store(output + at, (first + second).to(output.dtype.element_ty), is_in)
    tl.store(sums + head * stride + query, total, is_head)
