"""Attention over a packed row: each suffix attends to its group's prefix and to itself.

Varlen calls: every segment attends to itself, the suffixes of each group attend to its prefix, and
with groups within groups further ones to the prefixes before them. The results are merged by
log-sum-exp, so no key is copied per suffix.
Shapes: N tokens of the row; H, J and D as in ``varlen_attention``.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from grpo_cl.policy.kernels.packing import Layout
from grpo_cl.policy.kernels.varlen_attention import AttentionState, States, select_kernel


def packed_attention(layout: Layout, states: States, scale: float | None) -> Tensor:
    """Attention output of each token of the row; (N, H, D)."""
    scale = states.query_QHD.shape[-1] ** -0.5 if scale is None else scale
    return _PackedAttention.apply(layout, scale, *states)


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, layout: Layout, scale: float, *qkv: Tensor) -> Tensor:
        states = States(*qkv)
        kernel = select_kernel(states)
        state = kernel.forward(states, layout.self_segments, scale)
        for prefix in layout.prefix_segments:
            over_prefix = kernel.forward(states.at(prefix), prefix, scale)
            kernel.merge_states(state.at(prefix.queries), over_prefix)
        ctx.layout, ctx.scale = layout, scale
        ctx.save_for_backward(*states, *state)
        return state.output_QHD

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator's types have no names
        (grad_NHD,) = grads
        *qkv, output_NHD, lse_HN = ctx.saved_tensors  # a checkpoint unpacks them only once
        states, state = States(*qkv), AttentionState(output_NHD, lse_HN)
        kernel = select_kernel(states)
        qkv_grads = kernel.backward(states, state, grad_NHD, ctx.layout.self_segments, ctx.scale)
        for prefix in ctx.layout.prefix_segments:
            part = states.at(prefix), state.at(prefix.queries), grad_NHD[prefix.queries]
            over_prefix = kernel.backward(*part, prefix, ctx.scale)
            places = prefix.queries, prefix.keys, prefix.keys
            for grad, added, place in zip(qkv_grads, over_prefix, places, strict=True):
                grad[place] += added
        return None, None, *qkv_grads
