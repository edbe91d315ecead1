"""Attention over a packed row: each branch sees its family's beginning and itself.

Every segment looks at itself, and besides all members of a family look at what it begins with. The
two looks are joined by the sums of their exponents, so no key is copied for those who look at it.
Shapes: N tokens of the row, Q queries of the second look; H, J and D as in ``kernels``.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from grpo_cl.policy.kernels import Seen, States, kernel_for
from grpo_cl.policy.packing import Layout


def attend_branches(layout: Layout, states: States, scale: float | None) -> Tensor:
    """What each token of the row gets; (N, H, D)."""
    scale = states.query_QHD.shape[-1] ** -0.5 if scale is None else scale
    return _Branches.apply(layout, scale, *states)


class _Branches(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, layout: Layout, scale: float, *states: Tensor) -> Tensor:
        given, onward = States(*states), layout.onward
        kernel = kernel_for(given)
        seen = kernel.look(given, layout.own, scale)
        if onward:
            kernel.join(seen.at(onward.queries), kernel.look(given.at(onward), onward, scale))
        ctx.layout, ctx.scale = layout, scale
        ctx.save_for_backward(*given, *seen)
        return seen.output_QHD

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator's types have no names
        (grad_NHD,), onward = grads, ctx.layout.onward
        *states, output_NHD, lse_HN = ctx.saved_tensors  # a checkpoint gives them only once
        given, seen = States(*states), Seen(output_NHD, lse_HN)
        look_back = kernel_for(given).look_back
        found = look_back(given, seen, grad_NHD, ctx.layout.own, ctx.scale)
        if onward:
            part = given.at(onward), seen.at(onward.queries), grad_NHD[onward.queries]
            more = look_back(*part, onward, ctx.scale)
            places = onward.queries, onward.keys, onward.keys
            for total, added, where in zip(found, more, places, strict=True):
                total[where] += added
        return None, None, *found
