"""Linear layers with a LoRA adapter, computed in the dtype of the base layer.

peft computes adapters in float32 and converts their inputs and outputs, which moves more memory
than the base layer itself. Here the adapter's two products are added in place; its weights, their
gradients and the optimizer's moments stay float32. Shapes: N tokens, B rows of a decoding step, I
inputs, O or F outputs, R rank.
"""

from typing import Any, NamedTuple

import torch
from peft.tuners.lora import Linear
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear
from typing_extensions import override


class LoraWeights(NamedTuple):
    """The adapter of a linear layer."""

    down_RI: Tensor
    up_OR: Tensor
    scale: float


class AdaptedOutput(NamedTuple):
    """The output of linear layers, to which their adapters are still to be added."""

    output_BF: Tensor
    inner_BR: Tensor
    """Down projections; without ranks there is no adapter."""
    up_FR: Tensor
    scale_F: Tensor


def lora_linear(layer: nn.Module, input_NI: Tensor) -> Tensor:
    """The layer's output, with its active adapter if it has one."""
    base, adapter = split_adapter(layer)
    if adapter is None:
        return base(input_NI)
    return _LoraLinear.apply(input_NI, base.weight, base.bias, *adapter)


def lora_linear_without_recompute(layer: nn.Module, input_NI: Tensor) -> Tensor:
    """As ``lora_linear``; as a checkpointed block's last layer its base product runs only once.

    Recomputation stops as soon as all tensors saved for the backward pass exist. PyTorch's own
    operators save their inputs before they compute, so the last product is not recomputed.
    """
    base, adapter = split_adapter(layer)
    if adapter is None or base.bias is not None:
        return lora_linear(layer, input_NI)
    down_RI, up_OR, scale = adapter
    dtype = input_NI.dtype
    inner_NR = linear(input_NI, down_RI.to(dtype))
    zero_NO = input_NI.new_zeros(()).expand(len(input_NI), len(up_OR))
    output_NO = torch.addmm(zero_NO, inner_NR, up_OR.to(dtype).t(), beta=0, alpha=scale)
    return output_NO.addmm_(input_NI, base.weight.t())


def split_adapter(layer: nn.Module) -> tuple[Any, LoraWeights | None]:
    """The base layer and its active adapter; the layer itself and None if it has no plain LoRA."""
    adapter = _active_adapter(layer) if isinstance(layer, Linear) else None
    return (layer, None) if adapter is None else (layer.base_layer, adapter)


def _active_adapter(layer: Linear) -> LoraWeights | None:
    """The only active adapter, if it is plain LoRA without dropout or bias."""
    names = [name for name in layer.active_adapters if name in layer.lora_A]
    is_plain = type(layer.base_layer) is nn.Linear and not layer.lora_variant
    if layer.disable_adapters or layer.merged or len(names) != 1 or not is_plain:
        return None
    (name,) = names
    down: Any = layer.lora_A[name]
    up: Any = layer.lora_B[name]
    has_dropout = not isinstance(layer.lora_dropout[name], nn.Identity)
    if has_dropout or up.bias is not None:
        return None
    return LoraWeights(down.weight, up.weight, layer.scaling[name])


class _LoraLinear(torch.autograd.Function):
    @staticmethod
    @override
    def forward(
        ctx: Any,
        input_NI: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        *adapter: Any,
    ) -> Tensor:
        down_RI, up_OR, scale = adapter
        output_NO = linear(input_NI, weight_OI, bias_O)
        inner_NR = linear(input_NI, down_RI.to(input_NI.dtype))
        output_NO.addmm_(inner_NR, up_OR.to(input_NI.dtype).t(), alpha=scale)
        ctx.save_for_backward(input_NI, weight_OI, down_RI, up_OR, inner_NR)
        ctx.scale = scale
        return output_NO

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator's types have no names
        (grad_NO,) = grads
        input_NI, weight_OI, down_RI, up_OR, inner_NR = ctx.saved_tensors
        needs_input, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        grad_inner_NR = (grad_NO @ up_OR.to(grad_NO.dtype)).mul_(ctx.scale)
        grad_input_NI = None
        if needs_input:
            grad_input_NI = grad_NO @ weight_OI
            grad_input_NI.addmm_(grad_inner_NR, down_RI.to(grad_NO.dtype))
        grad_weight_OI = grad_NO.t() @ input_NI if needs_weight else None
        grad_bias_O = grad_NO.sum(0) if needs_bias else None
        grad_down_RI = (grad_inner_NR.t() @ input_NI).to(down_RI.dtype)
        grad_up_OR = (grad_NO.t() @ inner_NR).mul_(ctx.scale).to(up_OR.dtype)
        return grad_input_NI, grad_weight_OI, grad_bias_O, grad_down_RI, grad_up_OR, None
