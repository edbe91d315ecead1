"""Layers of Llama's shape, read over a packed row with few and fused kernels.

Between its matrix products a layer's own pass goes over its hidden states again and again, a kernel
for every operation of a norm, a rotation, a gate. Shapes: N tokens of the row, E hidden size, F
inner size, H query heads, J key heads, D width.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grpo_cl.policy.adapted import project, project_last
from grpo_cl.policy.attention import are_alike
from grpo_cl.policy.branches import attend_branches
from grpo_cl.policy.kernels import States
from grpo_cl.policy.packing import Layout, pack
from grpo_cl.policy.siblings import Family
from grpo_cl.policy.triton_here import has_triton, kernels_of

KERNELS = "fused_layers"
SHAPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Types of models that are layers of norm, attention, norm and gated projections, and no more."""


def can_be_fused(causal: PreTrainedModel) -> bool:
    """Whether the model's layers are of the shape, and Triton is there to compute them."""
    settings = causal.config.get_text_config().to_dict()
    is_known = settings["model_type"] in SHAPES and settings["hidden_act"] == "silu"
    return is_known and has_triton()


class FusedLayers:
    """The layers of a model, whose packed rows are read with fused kernels from now on."""

    def __init__(self, causal: PreTrainedModel) -> None:
        unfuse(causal)
        self._base: Any = causal.base_model
        self._passes: list[_Forward] = []
        for layer in self._base.layers:
            layer.forward = _Forward(layer)
            self._passes.append(layer.forward)

    @torch.no_grad()
    def are_exact(self) -> bool:
        """Whether each layer gives what its own pass gives.

        Layer by layer, since what two ways round differently grows from each to the next.
        """
        layout = pack([(0, 0, 0), (0, 0), (0,)], [Family((0, 1), 1), Family((2,), 0)])
        weight: Tensor = self._base.embed_tokens.weight
        layout = layout.to(weight.device)
        count, width = layout.ids_1N.numel(), weight.shape[1]
        # Small beside what a layer adds to it, which does not depend on its size.
        hidden = 0.05 * torch.arange(count * width, device=weight.device).sin()
        hidden_1NE = hidden.view(1, count, width).to(weight.dtype)
        options = {
            "attention_mask": layout.ids_1N[None, None],
            "position_embeddings": self._base.rotary_emb(hidden_1NE, layout.positions_1N),
            "layout": layout,
        }
        return all(
            are_alike(one(hidden_1NE, **options), one.own(hidden_1NE, **options))
            for one in self._passes
        )


def unfuse(causal: nn.Module) -> None:
    """Let the layers read all rows their own way; those of a copy are fused as the first one's."""
    for module in causal.modules():
        if isinstance(module.forward, _Forward):
            del module.forward


class _Forward:
    """One layer's pass; an object, since a copy of the layer then has one of its own."""

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self.own = layer.forward

    def __call__(self, hidden_states: Tensor, *args: Any, **options: Any) -> Tensor:
        layout: Layout | None = options.get("layout")
        if layout is None:
            return self.own(hidden_states, *args, **options)
        layer, gates = self._layer, self._layer.mlp
        total_NE, normed_NE = _norm(layer.input_layernorm, hidden_states[0])
        added_NE = self._attend(normed_NE, layout, options["position_embeddings"])
        total_NE, normed_NE = _norm(layer.post_attention_layernorm, total_NE, added_NE)
        up_NF = project(gates.up_proj, normed_NE)
        inner_NF = kernels_of(KERNELS).gated(project(gates.gate_proj, normed_NE), up_NF)
        last = project_last if layer.gradient_checkpointing else project
        return (total_NE + last(gates.down_proj, inner_NF))[None]

    def _attend(self, normed_NE: Tensor, layout: Layout, turns: tuple[Tensor, Tensor]) -> Tensor:
        layer = self._layer.self_attn
        cosines_1ND, sines_1ND = turns
        states = self._states(normed_NE, (cosines_1ND[0].contiguous(), sines_1ND[0].contiguous()))
        return project(layer.o_proj, attend_branches(layout, states, layer.scaling).flatten(1))

    def _states(self, normed_NE: Tensor, turns: tuple[Tensor, Tensor]) -> States:
        layer = self._layer.self_attn
        query_NHD, key_NJD, value_NJD = (
            project(one, normed_NE).unflatten(1, (-1, layer.head_dim))
            for one in (layer.q_proj, layer.k_proj, layer.v_proj)
        )
        if layer.config.model_type == "qwen3":
            query_NHD = _norm_heads(layer.q_norm, query_NHD)
            key_NJD = _norm_heads(layer.k_norm, key_NJD)
        turned = kernels_of(KERNELS).turned
        return States(turned(query_NHD, turns), turned(key_NJD, turns), value_NJD)


def _norm(norm: Any, hidden: Tensor, added: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return kernels_of(KERNELS).add_norm(hidden, added, norm.weight, norm.variance_epsilon)


def _norm_heads(norm: Any, states_NHD: Tensor) -> Tensor:
    return _norm(norm, states_NHD.flatten(0, 1))[1].view_as(states_NHD)
