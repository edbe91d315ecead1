"""Training forward pass of Llama blocks over a packed row, with fused Triton kernels.

Between its matrix products the block's own forward pass reads and writes the hidden states many
times, with one kernel per operation of norm, RoPE and activation. Shapes: N tokens of the row, E
hidden size, F MLP size, D head dimension.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grpo_cl.policy.kernels.attention_dispatch import allclose_relative
from grpo_cl.policy.kernels.llama_block import (
    BlockLinears,
    block_forward,
    block_linears,
    split_heads,
)
from grpo_cl.policy.kernels.lora_linear import lora_linear, lora_linear_without_recompute
from grpo_cl.policy.kernels.packed_attention import packed_attention
from grpo_cl.policy.kernels.packing import Layout, pack
from grpo_cl.policy.kernels.prefix_groups import PrefixGroup
from grpo_cl.policy.kernels.triton_support import load_kernels
from grpo_cl.policy.kernels.varlen_attention import States

KERNELS = "blocks"


def fuse_blocks(causal: PreTrainedModel) -> None:
    """Replace the forward pass of the model's blocks for packed rows."""
    unfuse_blocks(causal)
    base: Any = causal.base_model
    for block in base.layers:
        block.forward = _FusedForward(block)


def unfuse_blocks(causal: nn.Module) -> None:
    """Restore the blocks' own forward pass, also in a copy of a model with fused blocks."""
    for module in causal.modules():
        if isinstance(module.forward, _FusedForward):
            del module.forward


def is_fused(causal: nn.Module) -> bool:
    """Whether ``fuse_blocks`` replaced a forward pass that was not restored."""
    return any(isinstance(module.forward, _FusedForward) for module in causal.modules())


@torch.no_grad()
def fused_blocks_are_exact(causal: PreTrainedModel, device: torch.device | None = None) -> bool:
    """Whether each fused block gives the output of its own forward pass.

    Each block is compared alone, since rounding differences grow from block to block. It is moved
    to ``device`` and back: the whole model may be too large for it.
    """
    base: Any = causal.base_model
    layout = pack([(0, 0, 0), (0, 0), (0,)], [PrefixGroup((0, 1), 1), PrefixGroup((2,), 0)])
    weight: Tensor = base.embed_tokens.weight
    count, width = layout.ids_1N.numel(), weight.shape[1]
    # Small compared to a block's output, which does not depend on the scale of its input.
    hidden = 0.05 * torch.arange(count * width, device=weight.device).sin()
    hidden_1NE = hidden.view(1, count, width).to(weight.dtype)
    cos_sin = base.rotary_emb(hidden_1NE, layout.positions_1N.to(weight.device))
    device = device or weight.device
    hidden_1NE, layout = hidden_1NE.to(device), layout.to(device)
    options = {
        "attention_mask": layout.ids_1N[None, None],
        "position_embeddings": tuple(part.to(device) for part in cos_sin),
        "layout": layout,
    }

    def is_exact(block: Any) -> bool:
        block.to(device)
        try:
            fused = block.forward(hidden_1NE, **options)
            return allclose_relative(fused, block.forward.unfused(hidden_1NE, **options))
        finally:
            block.to(weight.device)

    return all(is_exact(block) for block in base.layers)


class _FusedForward:
    """One block's forward pass; an object, so that a deep copy of the block gets its own."""

    def __init__(self, block: Any) -> None:
        self._block = block
        self.unfused = block.forward

    def __call__(self, hidden_states: Tensor, *args: Any, **options: Any) -> Tensor:
        layout: Layout | None = options.get("layout")
        if layout is None:
            return self.unfused(hidden_states, *args, **options)
        cos_sin: tuple[Tensor, Tensor] = options["position_embeddings"]
        linears = block_linears(self._block)  # once: small models are bound by the host
        hidden_NE, added_NE = block_forward(
            self._block,
            load_kernels(KERNELS),
            hidden_states[0],
            None,
            attention=lambda normed_NE: self._attention(linears, normed_NE, layout, cos_sin),
            mlp=lambda normed_NE: self._mlp(linears, normed_NE),
        )
        return (hidden_NE + added_NE)[None]

    def _attention(
        self,
        linears: BlockLinears,
        normed_NE: Tensor,
        layout: Layout,
        cos_sin: tuple[Tensor, Tensor],
    ) -> Tensor:
        cos_ND, sin_ND = (part_1ND[0].contiguous() for part_1ND in cos_sin)
        states = self._states(linears, normed_NE, (cos_ND, sin_ND))
        output_NHD = packed_attention(layout, states, self._block.self_attn.scaling)
        return lora_linear(*linears.output, output_NHD.flatten(1))

    def _states(
        self, linears: BlockLinears, normed_NE: Tensor, cos_sin_ND: tuple[Tensor, Tensor]
    ) -> States:
        """Queries and keys after RoPE, and values; the inputs of RoPE are freed on return."""
        kernels = load_kernels(KERNELS)
        projected = (lora_linear(linear, normed_NE) for linear in linears.qkv)
        query_NHD, key_NJD, value_NJD = split_heads(self._block.self_attn, kernels, projected)
        return States(
            kernels.apply_rope(query_NHD, cos_sin_ND),
            kernels.apply_rope(key_NJD, cos_sin_ND),
            value_NJD.contiguous(),  # a view would keep Phi-3's queries and keys before RoPE
        )

    def _mlp(self, linears: BlockLinears, normed_NE: Tensor) -> Tensor:
        inner_NF = load_kernels(KERNELS).swiglu(*_gate_and_up(linears, normed_NE))
        is_checkpointed = self._block.gradient_checkpointing
        linear = lora_linear_without_recompute if is_checkpointed else lora_linear
        return linear(*linears.down, inner_NF)


def _gate_and_up(linears: BlockLinears, normed_NE: Tensor) -> Sequence[Tensor]:
    projected = [lora_linear(linear, normed_NE) for linear in linears.gate_up]
    return projected if len(projected) == 2 else projected[0].chunk(2, dim=1)
