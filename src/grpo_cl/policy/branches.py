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
from grpo_cl.policy.packing import Layout, Places


def attend_branches(layout: Layout, states: States, scale: float | None) -> Tensor:
    """What each token of the row gets; (N, H, D)."""
    scale = states.query_QHD.shape[-1] ** -0.5 if scale is None else scale
    return _Branches.apply(layout, scale, *states)


class _Branches(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, layout: Layout, scale: float, *states: Tensor) -> Tensor:
        given, onward = States(*states), layout.onward
        look = kernel_for(given).look
        seen = look(given, layout.own, scale)
        if onward:
            seen = _joined(seen, look(given.at(onward), onward, scale), onward.queries)
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


def _joined(seen: Seen, more: Seen, places: Places) -> Seen:
    """As if the queries at ``places`` had seen with one look what they saw with two."""
    first = seen.at(places)
    lse_HQ = torch.logaddexp(first.lse_HQ, more.lse_HQ)
    output_QHD = first.output_QHD * _share(first, lse_HQ)
    output_QHD += more.output_QHD * _share(more, lse_HQ)
    seen.output_QHD[places] = output_QHD.to(seen.output_QHD.dtype)
    seen.lse_HQ[:, places] = lse_HQ
    return seen


def _share(part: Seen, lse_HQ: Tensor) -> Tensor:
    return (part.lse_HQ - lse_HQ).exp().transpose(0, 1)[..., None]
