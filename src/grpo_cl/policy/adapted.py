"""Linear layers with an adapter, computed in the precision of the layer.

peft computes adapters in float32, and copies what they read and write for it: more traffic than the
matrix itself. Here the adapter's two products are added in place; its weights, and what the
optimizer does to them, stay float32. Shapes: N tokens, I inputs, O outputs, R rank.
"""

from typing import Any, NamedTuple

import torch
from peft.tuners.lora import Linear
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear
from typing_extensions import override


class Adapter(NamedTuple):
    """What is added to a linear layer."""

    down_RI: Tensor
    up_OR: Tensor
    scale: float


def project(layer: nn.Module, given_NI: Tensor) -> Tensor:
    """What the layer writes, with its adapter if one is in use."""
    base, adapter = parts_of(layer)
    if adapter is None:
        return base(given_NI)
    return _Adapted.apply(given_NI, base.weight, base.bias, *adapter)


def project_last(layer: nn.Module, given_NI: Tensor) -> Tensor:
    """As ``project``, at the end of what is computed twice, where the layer's product is made once.

    The second time ends as soon as everything is there that is kept for the way back. PyTorch's own
    operations keep what they read before they compute, so what comes last is not computed.
    """
    base, adapter = parts_of(layer)
    if adapter is None or base.bias is not None:
        return project(layer, given_NI)
    down_RI, up_OR, scale = adapter
    kind = given_NI.dtype
    inner_NR = linear(given_NI, down_RI.to(kind))
    nothing_NO = given_NI.new_zeros(()).expand(len(given_NI), len(up_OR))
    added_NO = torch.addmm(nothing_NO, inner_NR, up_OR.to(kind).t(), beta=0, alpha=scale)
    return added_NO.addmm_(given_NI, base.weight.t())


def parts_of(layer: nn.Module) -> tuple[Any, Adapter | None]:
    """A linear layer and its adapter; the layer as it is, if it has none of the plain kind."""
    adapter = _adapter(layer) if isinstance(layer, Linear) else None
    return (layer, None) if adapter is None else (layer.base_layer, adapter)


def _adapter(layer: Linear) -> Adapter | None:
    """The one adapter, if it is a plain one and nothing is dropped."""
    names = [name for name in layer.active_adapters if name in layer.lora_A]
    is_plain = type(layer.base_layer) is nn.Linear and not layer.lora_variant
    if layer.disable_adapters or layer.merged or len(names) != 1 or not is_plain:
        return None
    (name,) = names
    down: Any = layer.lora_A[name]
    up: Any = layer.lora_B[name]
    drops = not isinstance(layer.lora_dropout[name], nn.Identity)
    if drops or up.bias is not None:
        return None
    return Adapter(down.weight, up.weight, layer.scaling[name])


class _Adapted(torch.autograd.Function):
    @staticmethod
    @override
    def forward(
        ctx: Any,
        given_NI: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        *adapter: Any,
    ) -> Tensor:
        down_RI, up_OR, scale = adapter
        found_NO = linear(given_NI, weight_OI, bias_O)
        inner_NR = linear(given_NI, down_RI.to(given_NI.dtype))
        found_NO.addmm_(inner_NR, up_OR.to(given_NI.dtype).t(), alpha=scale)
        ctx.save_for_backward(given_NI, weight_OI, down_RI, up_OR, inner_NR)
        ctx.scale = scale
        return found_NO

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator's types have no names
        (grad_NO,) = grads
        given_NI, weight_OI, down_RI, up_OR, inner_NR = ctx.saved_tensors
        needs_given, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        to_inner_NR = (grad_NO @ up_OR.to(grad_NO.dtype)).mul_(ctx.scale)
        to_given_NI = None
        if needs_given:
            to_given_NI = grad_NO @ weight_OI
            to_given_NI.addmm_(to_inner_NR, down_RI.to(grad_NO.dtype))
        to_weight_OI = grad_NO.t() @ given_NI if needs_weight else None
        to_bias_O = grad_NO.sum(0) if needs_bias else None
        to_down_RI = (to_inner_NR.t() @ given_NI).to(down_RI.dtype)
        to_up_OR = (grad_NO.t() @ inner_NR).mul_(ctx.scale).to(up_OR.dtype)
        return to_given_NI, to_weight_OI, to_bias_O, to_down_RI, to_up_OR, None
