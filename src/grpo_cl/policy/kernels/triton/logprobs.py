"""Fused Triton kernels: log-probs of target tokens and entropies from logits, forward and backward.

Each pass reads the logits once. Shapes: N positions, V vocabulary.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

BLOCK_LOGITS = 4096
"""Logits that one program holds at once."""


def logprobs_and_entropy(
    logits_NV: Tensor, targets_N: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Log-probs of the targets, and the entropies, which carry no gradient; in float32."""
    return _LogprobsAndEntropy.apply(logits_NV, targets_N, temperature)


class _LogprobsAndEntropy(torch.autograd.Function):
    @staticmethod
    @override
    def forward(
        ctx: Any, logits_NV: Tensor, targets_N: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        rows, width = logits_NV.shape
        logprobs_N, entropy_N, lse_N = (
            logits_NV.new_empty(rows, dtype=torch.float32) for _ in range(3)
        )
        _forward[(rows,)](
            logits_NV, targets_N, logprobs_N, entropy_N, lse_N,
            logits_NV.stride(0), 1 / temperature, WIDTH=width, BLOCK=BLOCK_LOGITS, num_warps=8,
        )  # fmt: skip
        ctx.save_for_backward(logits_NV, targets_N, lse_N)
        ctx.inv_temperature = 1 / temperature
        ctx.mark_non_differentiable(entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator's types have no names
        logits_NV, targets_N, lse_N = ctx.saved_tensors
        rows, width = logits_NV.shape
        grad_NV = torch.empty_like(logits_NV)
        _backward[(rows, triton.cdiv(width, BLOCK_LOGITS))](
            logits_NV, targets_N, lse_N, grads[0].contiguous(), grad_NV,
            logits_NV.stride(0), grad_NV.stride(0), width, ctx.inv_temperature, BLOCK=BLOCK_LOGITS,
        )  # fmt: skip
        return grad_NV, None, None


@triton.jit
def _forward(
    logits, targets, logprobs, entropies, lse, stride, inv_temperature,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    best = tl.full([BLOCK], -1e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    weighted = tl.zeros([BLOCK], tl.float32)
    # Each lane has its own sums: there is one reduction across lanes, at the end.
    for first in range(0, WIDTH, BLOCK):
        column = first + tl.arange(0, BLOCK)
        is_in = column < WIDTH
        value = tl.load(logits + row * stride + column, is_in, 0.0).to(tl.float32)
        value = tl.where(is_in, value * inv_temperature, -1e30)
        higher = tl.maximum(best, value)
        rescale = tl.exp(best - higher)
        # A logit of -∞ has weight 0, and -∞ * 0 would be NaN.
        weight = tl.where(is_in, tl.exp(value - higher), 0.0)
        total = total * rescale + weight
        weighted = weighted * rescale + weight * tl.where(weight > 0, value, 0.0)
        best = higher
    top = tl.max(best)
    rescale = tl.exp(best - top)
    mass = tl.sum(total * rescale)
    normaliser = top + tl.log(mass)
    target = tl.load(targets + row)
    target_logit = tl.load(logits + row * stride + target).to(tl.float32) * inv_temperature
    tl.store(logprobs + row, target_logit - normaliser)
    tl.store(entropies + row, normaliser - tl.sum(weighted * rescale) / mass)
    tl.store(lse + row, normaliser)


@triton.jit
def _backward(
    logits, targets, lse, grad_logprobs, grad_logits, stride, grad_stride, width, inv_temperature,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_in = column < width
    value = tl.load(logits + row * stride + column, is_in, 0.0).to(tl.float32) * inv_temperature
    prob = tl.exp(tl.where(is_in, value - tl.load(lse + row), 0.0))
    is_target = column == tl.load(targets + row)
    grad = tl.load(grad_logprobs + row) * inv_temperature * (tl.where(is_target, 1.0, 0.0) - prob)
    tl.store(grad_logits + row * grad_stride + column, grad.to(grad_logits.dtype.element_ty), is_in)
