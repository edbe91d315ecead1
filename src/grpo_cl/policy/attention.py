"""Attention as training and sampling need it: over packed rows, and over cached keys and values.

Shapes: B rows, H query heads, J key heads (each serves H/J query heads), T new tokens, D width;
N and M as in ``packing``.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from grpo_cl.policy.packing import Layout, Segment

NAME = "grpo_cl"
SPECIAL = ("softcap", "position_bias", "s_aux")
"""Options that only transformers' own function knows what to do with."""
WIDEST = 256
"""The widest head that PyTorch's flash attention takes."""


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
    """A packed row by its ``layout``; others as transformers' own SDPA, with fewer copies."""
    layout: Layout | None = options.pop("layout", None)
    is_plain = all(options.get(name) is None for name in SPECIAL)
    if layout is not None:
        assert is_plain, "checked before the first row was packed"
        scale, dropout = options.get("scaling"), options.get("dropout", 0.0)
        pack = _flash if _has_flash(query) else _one_by_one
        return pack(layout, (query, key, value), scale, dropout), None
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


def _has_flash(query: Tensor) -> bool:
    is_short = query.dtype in {torch.bfloat16, torch.float16}
    return query.is_cuda and is_short and query.shape[3] <= WIDEST


def _flash(
    layout: Layout, states: tuple[Tensor, ...], scale: float | None, dropout: float
) -> Tensor:
    """All segments in one call; a causal mask whose last query sees the last key."""
    query_NHD, key_NJD, value_NJD = (state[0].transpose(0, 1) for state in states)
    output_NHD, *_ = torch.ops.aten._flash_attention_forward(
        query_NHD.contiguous(),
        key_NJD[layout.keys_M],
        value_NJD[layout.keys_M],
        layout.query_ends,
        layout.key_ends,
        *layout.longest,
        dropout,
        True,  # noqa: FBT003  # causal; the operator takes positions only
        False,  # noqa: FBT003  # no debug mask
        scale=scale,
    )
    return output_NHD[None]


def _one_by_one(
    layout: Layout, states: tuple[Tensor, ...], scale: float | None, dropout: float
) -> Tensor:
    query_1HND = states[0]
    outputs = [
        scaled_dot_product_attention(
            query_1HND[:, :, segment.start : segment.end],
            *(_seen(state, segment) for state in states[1:]),
            attn_mask=_causal(segment, query_1HND.device) if segment.before else None,
            is_causal=not segment.before,
            dropout_p=dropout,
            scale=scale,
            enable_gqa=True,
        )
        for segment in layout.segments
    ]
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous()


def _seen(state_1JND: Tensor, segment: Segment) -> Tensor:
    own = state_1JND[:, :, segment.start : segment.end]
    if not segment.before:
        return own
    before = state_1JND[:, :, segment.before.start : segment.before.stop]
    return torch.cat([before, own], dim=2)


def _causal(segment: Segment, device: torch.device) -> Tensor:
    new, before = segment.end - segment.start, len(segment.before)
    return torch.ones(new, before + new, dtype=torch.bool, device=device).tril(before)
