"""The decoder layer (block) of the Llama architecture, as the fused forward passes compute it.

Training (``fused_blocks``) and decoding (``inference/fused_decode``) share the structure and differ
in kernels, linear layers and attention. Shapes: N tokens, E hidden size, H query heads, J key
heads, D head dimension.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from torch import Tensor, nn
from transformers import PreTrainedModel

from grpo_cl.policy.kernels.triton_support import has_triton
from grpo_cl.policy.kernels.varlen_attention import States

MODEL_TYPES = frozenset({"llama", "mistral", "phi3", "qwen2", "qwen3"})
"""Model types whose blocks are RMSNorm, attention, RMSNorm and SwiGLU MLP, and nothing else."""


def supports_fused_blocks(causal: PreTrainedModel) -> bool:
    """Whether the model has such blocks, and Triton is available to compute them."""
    config = causal.config.get_text_config().to_dict()
    rope: dict[str, Any] = config.get("rope_parameters") or {}
    rotates_all = rope.get("partial_rotary_factor", 1.0) == 1
    is_supported = config["model_type"] in MODEL_TYPES and config["hidden_act"] == "silu"
    return is_supported and rotates_all and not config.get("resid_pdrop") and has_triton()


class BlockLinears(NamedTuple):
    """The linear layers of a block, grouped by their input; Phi-3 has one layer in each group."""

    qkv: tuple[nn.Module, ...]
    output: tuple[nn.Module]
    gate_up: tuple[nn.Module, ...]
    down: tuple[nn.Module]


def block_linears(block: Any) -> BlockLinears:
    """The linear layers that the block has now (adapters replace them)."""
    attention, mlp = block.self_attn, block.mlp
    is_phi3 = attention.config.model_type == "phi3"
    return BlockLinears(
        qkv=(attention.qkv_proj,)
        if is_phi3
        else (attention.q_proj, attention.k_proj, attention.v_proj),
        output=(attention.o_proj,),
        gate_up=(mlp.gate_up_proj,) if is_phi3 else (mlp.gate_proj, mlp.up_proj),
        down=(mlp.down_proj,),
    )


def block_forward(
    block: Any,
    kernels: Any,
    hidden_NE: Tensor,
    added_NE: Tensor | None,
    *,
    attention: Callable[[Tensor], Tensor],
    mlp: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """The block's residual stream without the MLP's output, and the MLP's output.

    The two are summed by the next block's first norm, which is given them as ``hidden_NE`` and
    ``added_NE``. ``attention`` and ``mlp`` map normed hidden states to outputs.
    """
    hidden_NE, normed_NE = add_norm(kernels, block.input_layernorm, hidden_NE, added_NE)
    added_NE = attention(normed_NE)
    hidden_NE, normed_NE = add_norm(kernels, block.post_attention_layernorm, hidden_NE, added_NE)
    return hidden_NE, mlp(normed_NE)


def add_norm(
    kernels: Any, norm: Any, hidden: Tensor, added: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The sum, and the RMSNorm of it."""
    return kernels.add_norm(hidden, added, norm.weight, norm.variance_epsilon)


def split_heads(attention: Any, kernels: Any, projected: Iterable[Tensor]) -> States:
    """Queries, keys and values by head, before RoPE, from the outputs of the QKV projections."""
    heads = [tensor.unflatten(1, (-1, attention.head_dim)) for tensor in projected]
    if len(heads) == 1:
        key_heads = attention.config.num_key_value_heads
        counts = [heads[0].shape[1] - 2 * key_heads, key_heads, key_heads]
        heads = heads[0].split(counts, dim=1)
    query_NHD, key_NJD, value_NJD = heads
    if attention.config.model_type == "qwen3":
        query_NHD = _norm_heads(kernels, attention.q_norm, query_NHD)
        key_NJD = _norm_heads(kernels, attention.k_norm, key_NJD)
    return States(query_NHD, key_NJD, value_NJD)


def _norm_heads(kernels: Any, norm: Any, states_NHD: Tensor) -> Tensor:
    return add_norm(kernels, norm, states_NHD.flatten(0, 1), None)[1].view_as(states_NHD)
