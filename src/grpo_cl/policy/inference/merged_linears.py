"""Linear layers with the same input, merged into one product, and their LoRA adapters.

Shapes: B rows, E inputs, F outputs of all layers, R ranks of all adapters.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from grpo_cl.policy.kernels.lora_linear import LoraWeights, split_adapter
from grpo_cl.policy.kernels.triton_support import load_kernels


class MergedLinears:
    """Linear layers with the same input; merged weights are copies that need refreshing.

    Adapter weights are always copied: they are stored in float32 and used in the base dtype.
    """

    def __init__(self, layers: Sequence[nn.Module], *, merge: bool) -> None:
        self._layers = layers
        bases = [base for base, _ in map(split_adapter, layers)]
        are_plain = all(type(base) is nn.Linear for base in bases)
        has_same_parts = len({len(list(base.parameters())) for base in bases}) == 1
        self._is_merged = merge and are_plain and has_same_parts and len(bases) > 1
        self._weight_FE: Tensor | None = None
        self._bias_F: Tensor | None = None
        self._down_RE: Tensor | None = None
        self._ups: dict[int, Tensor] = {}
        self._lora = load_kernels("lora")

    def __call__(self, input_BE: Tensor) -> Sequence[Tensor]:
        """The output of each layer."""
        bases, adapters = self._split()
        if self._is_merged:
            assert self._weight_FE is not None, "refreshed before first use"
            merged_BF = linear(input_BE, self._weight_FE, self._bias_F)
            outputs: Sequence[Tensor] = merged_BF.split(
                [base.out_features for base in bases], dim=1
            )
        else:
            outputs = [base(input_BE) for base in bases]
        if adapters:
            assert self._down_RE is not None, "refreshed before first use"
            inner_BR, start = self._lora.lora_down(input_BE, self._down_RE), 0
            for index, adapter in adapters.items():
                up_FR = self._ups[index]
                self._lora.lora_up(inner_BR, start, up_FR, adapter.scale, outputs[index])
                start += up_FR.shape[1]
        return outputs

    @property
    def copied(self) -> list[Tensor]:
        """The model's weights that are copied here."""
        bases, adapters = self._split()
        merged = [w for base in bases for w in base.parameters()] if self._is_merged else []
        return [*merged, *(w for lora in adapters.values() for w in (lora.down_RI, lora.up_OR))]

    @torch.no_grad()
    def refresh_weights(self) -> None:
        """Copy the model's current weights, in place, so that CUDA graphs stay valid."""
        bases, adapters = self._split()
        if self._is_merged:
            self._weight_FE = _cat_into(self._weight_FE, [base.weight for base in bases])
            biases = [base.bias for base in bases if base.bias is not None]
            self._bias_F = _cat_into(self._bias_F, biases) if biases else None
        if adapters:
            dtype: torch.dtype = bases[0].weight.dtype
            downs = [lora.down_RI.to(dtype) for lora in adapters.values()]
            self._down_RE = _cat_into(self._down_RE, downs)
            self._ups = {
                index: _cat_into(self._ups.get(index), [lora.up_OR.to(dtype)])
                for index, lora in adapters.items()
            }

    def _split(self) -> tuple[list[Any], dict[int, LoraWeights]]:
        """The base layers, and the active adapters by the index of their layer."""
        parts = [split_adapter(layer) for layer in self._layers]
        adapters = {index: lora for index, (_, lora) in enumerate(parts) if lora is not None}
        return [base for base, _ in parts], adapters


def _cat_into(target: Tensor | None, parts: Sequence[Tensor]) -> Tensor:
    """The concatenated parts, in the memory of ``target`` if it has their shape."""
    merged = torch.cat(tuple(parts))
    return merged if target is None or target.shape != merged.shape else target.copy_(merged)
