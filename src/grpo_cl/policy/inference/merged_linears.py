"""Linear layers with the same input, merged into one product, and their LoRA adapters.

Shapes: B rows, E inputs, F outputs, R ranks of adapters.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from grpo_cl.policy.kernels.lora_linear import AdaptedOutput, LoraWeights, split_adapter
from grpo_cl.policy.kernels.triton_support import load_kernels

ALIGNMENT = 16
"""A merged product with adapters has a multiple of this many columns: matrix products are fast if
every row begins at a multiple of 16 bytes."""


class _UpProjection(NamedTuple):
    """Up projections of the layers with one output tensor, as blocks of a diagonal matrix."""

    weight_FR: Tensor
    scale_F: Tensor
    ranks: slice
    """Their part of the ranks of all adapters."""


class MergedLinears:
    """Linear layers with the same input; merged weights are copies that need refreshing.

    Adapter weights are always copied: they are stored in float32 and used in the base dtype. Down
    projections of merged layers are columns of the merged product.
    """

    def __init__(self, layers: Sequence[nn.Module], *, merge: bool) -> None:
        self._layers = layers
        bases, _ = self._split()
        self._widths: list[int] = [base.out_features for base in bases]
        are_plain = all(type(base) is nn.Linear for base in bases)
        has_same_parts = len({len(list(base.parameters())) for base in bases}) == 1
        self._is_merged = merge and are_plain and has_same_parts and len(bases) > 1
        self._weight_FE: Tensor | None = None
        self._bias_F: Tensor | None = None
        self._down_RE: Tensor | None = None
        self._ups: list[_UpProjection] = []
        self._lora = load_kernels("lora")
        self._decode = load_kernels("decode")

    def __call__(self, input_BE: Tensor) -> Sequence[Tensor]:
        """The output of each layer."""
        outputs, inner_BR = self._multiply(input_BE)
        if inner_BR is not None:
            for output in self._adapted(outputs, inner_BR):
                if output.inner_BR.shape[1]:
                    self._lora.lora_up(output)
        return self._by_layer(outputs)

    def swiglu(self, input_BE: Tensor) -> Tensor:
        """SiLU of the first layer's output times the second's, or of the halves of a single one."""
        outputs, inner_BR = self._multiply(input_BE)
        widths = [sum(self._widths) // 2] * 2
        if inner_BR is None:
            halves = outputs if len(outputs) == 2 else outputs[0].split(widths, dim=1)
            return self._decode.swiglu(*halves)
        adapted = self._adapted(outputs, inner_BR)
        if len(adapted) == 1:
            (merged,) = adapted
            adapted = [
                merged._replace(output_BF=output_BF, up_FR=up_FR, scale_F=scale_F)
                for output_BF, up_FR, scale_F in zip(
                    merged.output_BF.split(widths, dim=1),
                    merged.up_FR.split(widths),
                    merged.scale_F.split(widths),
                    strict=True,
                )
            ]
        return self._lora.lora_swiglu(*adapted)

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
        downs: list[Tensor] = []
        if adapters:
            dtype: torch.dtype = bases[0].weight.dtype
            downs = [lora.down_RI.to(dtype) for lora in adapters.values()]
            self._refresh_ups(adapters, dtype)
        if self._is_merged:
            weights = [*(base.weight for base in bases), *downs]
            if downs:
                padding = -sum(map(len, weights)) % ALIGNMENT
                weights.append(downs[0].new_zeros(padding, downs[0].shape[1]))
            self._weight_FE = _copied(self._weight_FE, torch.cat(weights))
            biases = [base.bias for base in bases if base.bias is not None]
            if biases:
                added = len(self._weight_FE) - sum(self._widths)
                biases.append(biases[0].new_zeros(added))
                self._bias_F = _copied(self._bias_F, torch.cat(biases))
        elif downs:
            self._down_RE = _copied(self._down_RE, torch.cat(downs))

    def _multiply(self, input_BE: Tensor) -> tuple[list[Tensor], Tensor | None]:
        """The outputs without adapters, one if merged, and the down projections of adapters."""
        bases, adapters = self._split()
        if self._is_merged:
            assert self._weight_FE is not None, "refreshed before first use"
            merged_BF, width = linear(input_BE, self._weight_FE, self._bias_F), sum(self._widths)
            return [merged_BF[:, :width]], merged_BF[:, width:] if adapters else None
        outputs = [base(input_BE) for base in bases]
        if not adapters:
            return outputs, None
        assert self._down_RE is not None, "refreshed before first use"
        return outputs, self._lora.lora_down(input_BE, self._down_RE)

    def _adapted(self, outputs: Sequence[Tensor], inner_BR: Tensor) -> list[AdaptedOutput]:
        return [
            AdaptedOutput(output_BF, inner_BR[:, up.ranks], up.weight_FR, up.scale_F)
            for output_BF, up in zip(outputs, self._ups, strict=True)
        ]

    def _by_layer(self, outputs: Sequence[Tensor]) -> Sequence[Tensor]:
        return outputs[0].split(self._widths, dim=1) if self._is_merged else outputs

    def _refresh_ups(self, adapters: dict[int, LoraWeights], dtype: torch.dtype) -> None:
        like = next(iter(adapters.values())).up_OR
        layers = range(len(self._widths))
        ups: list[_UpProjection] = []
        start = 0
        for number, merged in enumerate([layers] if self._is_merged else [[n] for n in layers]):
            blocks: list[Tensor] = []
            scales: list[Tensor] = []
            for layer in merged:
                width, lora = self._widths[layer], adapters.get(layer)
                blocks.append(like.new_empty(width, 0) if lora is None else lora.up_OR)
                scales.append(like.new_full((width,), 0.0 if lora is None else lora.scale))
            weight_FR = torch.block_diag(*blocks).to(dtype)
            scale_F = torch.cat(scales).float()
            if self._ups:
                weight_FR = _copied(self._ups[number].weight_FR, weight_FR)
                scale_F = _copied(self._ups[number].scale_F, scale_F)
            ranks = slice(start, start + weight_FR.shape[1])
            ups.append(_UpProjection(weight_FR, scale_F, ranks))
            start = ranks.stop
        self._ups = ups

    def _split(self) -> tuple[list[Any], dict[int, LoraWeights]]:
        """The base layers, and the active adapters by the index of their layer."""
        parts = [split_adapter(layer) for layer in self._layers]
        adapters = {index: lora for index, (_, lora) in enumerate(parts) if lora is not None}
        return [base for base, _ in parts], adapters


def _copied(target: Tensor | None, source: Tensor) -> Tensor:
    """The numbers of ``source``, in the memory of ``target`` if it has the same shape."""
    return source if target is None or target.shape != source.shape else target.copy_(source)
