"""Cascade attention: attention over a row's own KV cache merged with attention over its prefix.

All rows attend to a shared prefix in one call, so that its keys are read once for the whole batch.
Partial results are merged by log-sum-exp (LSE).

Shapes: B rows, H query heads, J key heads (each serves G = H/J query heads), T new tokens, K tokens
of a row, L tokens of a prefix, C pages of P tokens, Q queries of all rows, D head dimension.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_cl.gpu_memory.constants import PAGE_SIZE
from grpo_cl.policy.kernels.prefix_view import PrefixView
from grpo_cl.policy.kernels.varlen_attention import FLASH, States, select_kernel

MASK_ALIGNMENT = 8
"""The efficient attention kernel needs mask rows whose stride is a multiple of this."""


class PartialState(NamedTuple):
    """Attention output over some of the keys, and its LSE."""

    output: Tensor
    """Of any shape with the head dimension last."""
    lse: Tensor
    """Log-sum-exp of the scores, for each query and head."""


def cascade_attention(
    states: Sequence[Tensor], mask: Tensor, prefix_view: PrefixView, layer: int, scale: float
) -> Tensor:
    """Attention of each new token over its row (``states``) and its prefix; (B, T, H, D)."""
    query_BHTD, key_BJKD, value_BJKD = states
    new_tokens = query_BHTD.shape[2]
    query_HQD = query_BHTD.transpose(0, 1).flatten(1, 2)
    partials = [_attend_rows(query_BHTD, key_BJKD, value_BJKD, mask, scale)]
    for slot, length in prefix_view.prefixes:
        prefix_kv = prefix_view.cache.row(layer, slot, length)
        # In a prefill of several tokens all rows see the whole prefix.
        visible_BC = _visible_pages(prefix_view, slot, length) if new_tokens == 1 else None
        partials.append(_attend_prefix(query_HQD, prefix_kv, visible_BC, scale))
    stacked = PartialState(*(torch.stack(parts) for parts in zip(*partials, strict=True)))
    output_HQD, _ = merge_states(stacked)
    output_HBTD = output_HQD.to(query_BHTD.dtype).unflatten(1, (-1, new_tokens))
    return output_HBTD.permute(1, 2, 0, 3)


def _visible_pages(prefix_view: PrefixView, slot: int, length: int) -> Tensor:
    """Which pages of the prefix in ``slot`` each row attends to."""
    lengths_B = prefix_view.visible_lengths(slot)
    return torch.arange(0, length, PAGE_SIZE, device=lengths_B.device) < lengths_B[:, None]


def _attend_rows(
    query_BHTD: Tensor, key_BJKD: Tensor, value_BJKD: Tensor, mask: Tensor, scale: float
) -> PartialState:
    """Attention of each row's queries over its own keys; (H, Q, D)."""
    batch, heads, new_tokens, width = query_BHTD.shape
    if new_tokens == 1:
        # The query heads of a key head become queries of one head.
        query = query_BHTD.reshape(batch, key_BJKD.shape[1], -1, width)
        output, lse = _sdpa_with_lse(query, key_BJKD, value_BJKD, mask, scale)
        output, lse = output.reshape(query_BHTD.shape), lse.reshape(batch, heads, 1)
    else:
        group = heads // key_BJKD.shape[1]
        keys, values = (state.repeat_interleave(group, 1) for state in (key_BJKD, value_BJKD))
        output, lse = _sdpa_with_lse(query_BHTD, keys, values, mask, scale)
    return PartialState(*(tensor.transpose(0, 1).flatten(1, 2) for tensor in (output, lse)))


def _attend_prefix(
    query_HQD: Tensor, prefix_kv: tuple[Tensor, Tensor], visible_QC: Tensor | None, scale: float
) -> PartialState:
    """Attention of all queries over one prefix (J, L, D): its visible pages, or all of it."""
    states = States(*(state.transpose(0, 1) for state in (query_HQD, *prefix_kv)))
    if select_kernel(states) is FLASH:
        return _flash_over_pages(query_HQD, prefix_kv, visible_QC, scale)
    group = len(query_HQD) // len(prefix_kv[0])
    keys, values = (state.repeat_interleave(group, 0)[None] for state in prefix_kv)
    mask = None
    if visible_QC is not None:
        visible_QL = visible_QC.repeat_interleave(PAGE_SIZE, 1)
        bias_QL = query_HQD.new_zeros(visible_QL.shape)
        mask = bias_QL.masked_fill_(~visible_QL, _masked_score(query_HQD))[None, None]
    state = _sdpa_with_lse(query_HQD[None], keys, values, mask, scale)
    return PartialState(state.output[0], state.lse[0])


def _flash_over_pages(
    query_HQD: Tensor, prefix_kv: tuple[Tensor, Tensor], visible_QC: Tensor | None, scale: float
) -> PartialState:
    """FlashAttention; with a mask, over each page separately, which keeps the GPU busy."""
    count = 1 if visible_QC is None else visible_QC.shape[1]
    query_CQHD = query_HQD.transpose(0, 1).expand(count, -1, -1, -1)
    key_CPJD, value_CPJD = (
        state.unflatten(1, (count, -1)).permute(1, 2, 0, 3) for state in prefix_kv
    )
    options = (0.0, False, False)  # no dropout, not causal, no debug mask
    output_CQHD, lse_CHQ, *_ = torch.ops.aten._flash_attention_forward(
        query_CQHD,
        key_CPJD,
        value_CPJD,
        *(None, None, query_CQHD.shape[1], key_CPJD.shape[1]),
        *options,
        scale=scale,
    )
    output_CHQD = output_CQHD.transpose(1, 2)
    if visible_QC is None:
        return PartialState(output_CHQD[0], lse_CHQ[0])
    hidden_C1Q = ~visible_QC.transpose(0, 1)[:, None]
    lse_CHQ = lse_CHQ.masked_fill(hidden_C1Q, _masked_score(lse_CHQ))
    return merge_states(PartialState(output_CHQD, lse_CHQ))


def _sdpa_with_lse(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> PartialState:
    """SDPA that also returns the LSE; as many key heads as query heads."""
    if not query.is_cuda:
        output_and_lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, attn_mask=mask, scale=scale
        )
        return PartialState(*output_and_lse)
    bias = None if mask is None else _align(mask).expand(*query.shape[:3], -1)
    output, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, compute_log_sumexp=True, scale=scale
    )
    return PartialState(output, lse[..., : query.shape[2]])  # the kernel pads the queries


def _align(mask: Tensor) -> Tensor:
    length = mask.shape[-1]
    return torch.nn.functional.pad(mask, (0, -length % MASK_ALIGNMENT))[..., :length]


def merge_states(states: PartialState) -> PartialState:
    """Merge stacked (dim 0) partial attention of the same queries by LSE; in float32."""
    weights = states.lse.softmax(0)[..., None]
    return PartialState((weights * states.output).sum(0), states.lse.logsumexp(0))


def _masked_score(like: Tensor) -> float:
    """A finite score with softmax weight 0, so that a fully masked query does not give NaN.

    Not the dtype's minimum: kernels multiply scores, and an overflow would give NaN.
    """
    return max(torch.finfo(like.dtype).min, -1e30)
