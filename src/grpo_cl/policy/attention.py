"""Attention over cached keys and values that are shared by groups of heads.

Shapes: B rows, H query heads, J key heads (each serves H/J query heads), T new tokens, D width.
"""

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

NAME = "grpo_cl_cached"
SPECIAL = ("softcap", "position_bias")
"""Options that only transformers' own function knows what to do with."""


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
    """As transformers' own SDPA, without its copy of the whole cache for each query head."""
    query_BHTD, batch, new_tokens = query, query.shape[0], query.shape[2]
    scale: float | None = options.get("scaling")
    # On a GPU a mask and shared heads together fall back to the slowest kernel.
    is_plain = all(options.get(name) is None for name in SPECIAL)
    if not is_plain or (new_tokens > 1 and query.is_cuda):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    if new_tokens == 1:
        # The heads that share a key head become queries that share it.
        query_BJGD = query_BHTD.reshape(batch, key.shape[1], -1, query.shape[3])
        output = scaled_dot_product_attention(
            query_BJGD, key, value, attn_mask=attention_mask, scale=scale
        )
        return output.reshape(batch, 1, query.shape[1], -1), None
    output = scaled_dot_product_attention(
        query_BHTD, key, value, attn_mask=attention_mask, scale=scale, enable_gqa=True
    )
    return output.transpose(1, 2).contiguous(), None
