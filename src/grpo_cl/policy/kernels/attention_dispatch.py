"""The attention function given to transformers: packed rows, shared prefixes, or SDPA.

Shapes: B rows, H query heads, J key heads (each serves H/J query heads), T new tokens, D head
dimension.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from grpo_cl.errors import ConfigError
from grpo_cl.policy.kernels.cascade_attention import cascade_attention
from grpo_cl.policy.kernels.packed_attention import packed_attention
from grpo_cl.policy.kernels.packing import Layout
from grpo_cl.policy.kernels.prefix_view import PrefixView
from grpo_cl.policy.kernels.varlen_attention import States

NAME = "grpo_cl"
SPECIAL = ("softcap", "position_bias", "s_aux")
"""Options that only transformers' own attention function supports."""
TOLERANCE = {torch.bfloat16: 0.05, torch.float16: 0.01, torch.float32: 1e-3, torch.float64: 1e-6}
"""Largest relative error, by the norm of a vector, between two computations of the same value."""


def allclose_relative(actual: Tensor, expected: Tensor) -> bool:
    """Whether all vectors (last dimension) agree up to the rounding errors of their dtype."""
    errors = (actual.float() - expected.float()).norm(dim=-1)
    # No division: the embedding of a padding token is 0 in a new model, and so are its logits.
    return bool((errors <= TOLERANCE[expected.dtype] * expected.float().norm(dim=-1)).all())


def register() -> None:
    """Register ``attend`` with transformers under ``NAME``, and the masks it is given."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, _additive_mask)  # without it windows are ignored


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Packed attention with a ``layout``, cascade attention with a ``prefix_view``, else SDPA."""
    layout: Layout | None = options.pop("layout", None)
    prefix_view: PrefixView | None = options.pop("prefix_view", None)
    is_plain = all(options.get(name) is None for name in SPECIAL)
    if layout is not None:
        assert is_plain, "probed before the first row was packed"
        if options.get("dropout"):
            raise ConfigError(
                f"attention dropout {options['dropout']} is not supported in packed rows; set it "
                "to 0 in the model's config.json"
            )
        states = States(*(state[0].transpose(0, 1) for state in (query, key, value)))
        return packed_attention(layout, states, options.get("scaling"))[None], None
    if prefix_view is not None and is_plain:  # the prefix cache probes the model before use
        assert attention_mask is not None
        scale = options.get("scaling") or query.shape[-1] ** -0.5
        layer = cast(int, module.layer_idx)
        output = cascade_attention((query, key, value), attention_mask, prefix_view, layer, scale)
        return output, None
    # On a GPU, SDPA with a mask and grouped query heads falls back to its slowest kernel.
    is_slow = query.shape[2] > 1 and query.is_cuda
    if attention_mask is None or not is_plain or is_slow:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    return _grouped_sdpa(query, key, value, attention_mask, options.get("scaling")), None


def _additive_mask(*, dtype: torch.dtype, **options: Any) -> Tensor | None:
    """The mask of SDPA, None if it is causal, in the dtype of the scores.

    PyTorch converts a Boolean mask in every layer, and keeps each copy for the backward pass.
    """
    visible = sdpa_mask(dtype=dtype, **options)
    if visible is None:
        return None
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)


def _grouped_sdpa(
    query_BHTD: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None
) -> Tensor:
    """SDPA with grouped query heads, without repeating the KV cache for each query head."""
    batch, heads, new_tokens, width = query_BHTD.shape
    if new_tokens == 1:
        # The query heads of a key head become queries of one head.
        query_BJGD = query_BHTD.reshape(batch, key.shape[1], -1, width)
        output = scaled_dot_product_attention(query_BJGD, key, value, attn_mask=mask, scale=scale)
        return output.reshape(batch, 1, heads, -1)
    output = scaled_dot_product_attention(
        query_BHTD, key, value, attn_mask=mask, scale=scale, enable_gqa=True
    )
    return output.transpose(1, 2).contiguous()
