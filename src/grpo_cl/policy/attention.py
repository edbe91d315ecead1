"""Attention as training and sampling need it: over packed rows, and over cached keys and values.

Shapes: B rows, H query heads, J key heads (each serves H/J query heads), T new tokens, D width.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from grpo_cl.errors import ConfigError
from grpo_cl.policy.branches import attend_branches
from grpo_cl.policy.kernels import States
from grpo_cl.policy.packing import Layout
from grpo_cl.policy.rooted import attend_rooted
from grpo_cl.policy.trunks import Used

NAME = "grpo_cl"
SPECIAL = ("softcap", "position_bias", "s_aux")
"""Options that only transformers' own function knows what to do with."""
TOLERANCE = {torch.bfloat16: 0.05, torch.float16: 0.01, torch.float32: 1e-3, torch.float64: 1e-6}
"""How far two ways to compute the same may be apart, as a share of its norm."""


def are_alike(found: Tensor, expected: Tensor) -> bool:
    """Whether two ways gave the same vectors, as far as their precision lets one tell."""
    errors = (found.float() - expected.float()).norm(dim=-1) / expected.float().norm(dim=-1)
    return bool((errors < TOLERANCE[expected.dtype]).all())


def register() -> None:
    """Make ``attend`` known to transformers under ``NAME``."""
    AttentionInterface.register(NAME, attend)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Packed rows by their ``layout``, rows after trunks by what they use, others as SDPA."""
    layout: Layout | None = options.pop("layout", None)
    used: Used | None = options.pop("used", None)
    is_plain = all(options.get(name) is None for name in SPECIAL)
    if layout is not None:
        assert is_plain, "checked before the first row was packed"
        if options.get("dropout"):
            raise ConfigError(
                f"attention dropout {options['dropout']} has no place in a packed row; set it to 0 "
                "in the model's config.json"
            )
        states = States(*(state[0].transpose(0, 1) for state in (query, key, value)))
        return attend_branches(layout, states, options.get("scaling"))[None], None
    if used is not None and is_plain:  # whoever keeps trunks tries first whether they are seen
        assert attention_mask is not None
        scale = options.get("scaling") or query.shape[-1] ** -0.5
        layer = cast(int, module.layer_idx)
        return attend_rooted((query, key, value), attention_mask, used, layer, scale), None
    # On a GPU a mask and shared heads together fall back to the slowest kernel.
    is_slow = query.shape[2] > 1 and query.is_cuda
    if attention_mask is None or not is_plain or is_slow:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    return _over_cache(query, key, value, attention_mask, options.get("scaling")), None


def _over_cache(
    query_BHTD: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None
) -> Tensor:
    """Without a copy of the whole cache for each query head."""
    batch, heads, new_tokens, width = query_BHTD.shape
    if new_tokens == 1:
        # The heads that share a key head become queries that share it.
        query_BJGD = query_BHTD.reshape(batch, key.shape[1], -1, width)
        output = scaled_dot_product_attention(query_BJGD, key, value, attn_mask=mask, scale=scale)
        return output.reshape(batch, 1, heads, -1)
    output = scaled_dot_product_attention(
        query_BHTD, key, value, attn_mask=mask, scale=scale, enable_gqa=True
    )
    return output.transpose(1, 2).contiguous()
