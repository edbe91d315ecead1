"""Log-probs and entropies of given tokens from their logits, and the way back, each in one pass.

Written in Triton, see ``fused``. Shapes: N positions, V vocabulary.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

LOGITS = 4096
"""Logits that one program holds at once."""


def scored(logits_NV: Tensor, targets_N: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs of the targets, and the entropies, which carry no gradient; in float32."""
    return _Scored.apply(logits_NV, targets_N, temperature)


class _Scored(torch.autograd.Function):
    @staticmethod
    @override
    def forward(
        ctx: Any, logits_NV: Tensor, targets_N: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        rows, width = logits_NV.shape
        logprobs_N, entropy_N, lse_N = (
            logits_NV.new_empty(rows, dtype=torch.float32) for _ in range(3)
        )
        _score[(rows,)](
            logits_NV, targets_N, logprobs_N, entropy_N, lse_N,
            logits_NV.stride(0), 1 / temperature, WIDTH=width, BLOCK=LOGITS, num_warps=8,
        )  # fmt: skip
        ctx.save_for_backward(logits_NV, targets_N, lse_N)
        ctx.coldness = 1 / temperature
        ctx.mark_non_differentiable(entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator's types have no names
        logits_NV, targets_N, lse_N = ctx.saved_tensors
        rows, width = logits_NV.shape
        found_NV = torch.empty_like(logits_NV)
        _score_back[(rows, triton.cdiv(width, LOGITS))](
            logits_NV, targets_N, lse_N, grads[0].contiguous(), found_NV,
            logits_NV.stride(0), found_NV.stride(0), width, ctx.coldness, BLOCK=LOGITS,
        )  # fmt: skip
        return found_NV, None, None


@triton.jit
def _score(
    logits, targets, logprobs, entropies, sums, stride, coldness,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    best = tl.full([BLOCK], -1e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    weighed = tl.zeros([BLOCK], tl.float32)
    # Each lane has sums of its own, so that only the last ones are taken across lanes.
    for first in range(0, WIDTH, BLOCK):
        place = first + tl.arange(0, BLOCK)
        is_in = place < WIDTH
        value = tl.load(logits + row * stride + place, is_in, 0.0).to(tl.float32) * coldness
        value = tl.where(is_in, value, -1e30)
        higher = tl.maximum(best, value)
        shrink = tl.exp(best - higher)
        # -∞ has no weight, and times 0 would be no number.
        weight = tl.where(is_in, tl.exp(value - higher), 0.0)
        total = total * shrink + weight
        weighed = weighed * shrink + weight * tl.where(weight > 0, value, 0.0)
        best = higher
    top = tl.max(best)
    shrink = tl.exp(best - top)
    mass = tl.sum(total * shrink)
    normaliser = top + tl.log(mass)
    target = tl.load(targets + row)
    chosen = tl.load(logits + row * stride + target).to(tl.float32) * coldness
    tl.store(logprobs + row, chosen - normaliser)
    tl.store(entropies + row, normaliser - tl.sum(weighed * shrink) / mass)
    tl.store(sums + row, normaliser)


@triton.jit
def _score_back(
    logits, targets, sums, given, found, stride, found_stride, width, coldness, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_in = place < width
    value = tl.load(logits + row * stride + place, is_in, 0.0).to(tl.float32) * coldness
    chance = tl.exp(tl.where(is_in, value - tl.load(sums + row), 0.0))
    is_target = place == tl.load(targets + row)
    grad = tl.load(given + row) * coldness * (tl.where(is_target, 1.0, 0.0) - chance)
    tl.store(found + row * found_stride + place, grad.to(found.dtype.element_ty), is_in)
