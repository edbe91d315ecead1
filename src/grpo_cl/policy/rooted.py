"""Attention of rows that go on from trunks: what a row holds and what its trunk holds, joined.

A trunk is looked at by all rows together, so that its keys are read once however many they are. The
looks are joined by the sums of their exponents.

Shapes: B rows, H query heads, J key heads (each serves G = H/J query heads), T new tokens, K tokens
of a row, L tokens of a trunk, C pages of P tokens, Q queries of all rows, D width.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_cl.policy.kernels import FLASH, States, kernel_for
from grpo_cl.policy.trunks import PAGE, Used

ALIGNED = 8
"""What a GPU wants the rows of a mask to be multiples of."""


class Look(NamedTuple):
    """What queries got from some keys, and by what it was divided."""

    output: Tensor
    """Of any shape, the width last."""
    lse: Tensor
    """Logarithm of the sum of the exponents of the scores; one for each query and head."""


def attend_rooted(
    states: Sequence[Tensor], mask: Tensor, used: Used, layer: int, scale: float
) -> Tensor:
    """What each new token gets from its row, ``states``, and its trunk; (B, T, H, D)."""
    query_BHTD, key_BJKD, value_BJKD = states
    new_tokens = query_BHTD.shape[2]
    query_HQD = query_BHTD.transpose(0, 1).flatten(1, 2)
    looks = [_at_rows(query_BHTD, key_BJKD, value_BJKD, mask, scale)]
    for trunk, length in used.places:
        pages = used.cache.row(layer, trunk, length)
        # Where several tokens are read, all rows see all that is given.
        seen_BC = _pages(used, trunk, length) if new_tokens == 1 else None
        looks.append(_at_trunk(query_HQD, pages, seen_BC, scale))
    output_HQD, _ = _joined(Look(*(torch.stack(parts) for parts in zip(*looks, strict=True))))
    output_HBTD = output_HQD.to(query_BHTD.dtype).unflatten(1, (-1, new_tokens))
    return output_HBTD.permute(1, 2, 0, 3)


def _pages(used: Used, trunk: int, length: int) -> Tensor:
    """Which pages of a trunk each row sees."""
    seen_B = used.seen(trunk)
    return torch.arange(0, length, PAGE, device=seen_B.device) < seen_B[:, None]


def _at_rows(
    query_BHTD: Tensor, key_BJKD: Tensor, value_BJKD: Tensor, mask: Tensor, scale: float
) -> Look:
    """What each row holds, for the queries of all rows; (H, Q, D)."""
    batch, heads, new_tokens, width = query_BHTD.shape
    if new_tokens == 1:
        # The heads that share a key head become queries that share it.
        query = query_BHTD.reshape(batch, key_BJKD.shape[1], -1, width)
        output, lse = _look(query, key_BJKD, value_BJKD, mask, scale)
        output, lse = output.reshape(query_BHTD.shape), lse.reshape(batch, heads, 1)
    else:
        groups = heads // key_BJKD.shape[1]
        keys, values = (one.repeat_interleave(groups, 1) for one in (key_BJKD, value_BJKD))
        output, lse = _look(query_BHTD, keys, values, mask, scale)
    return Look(*(one.transpose(0, 1).flatten(1, 2) for one in (output, lse)))


def _at_trunk(
    query_HQD: Tensor, pages: tuple[Tensor, Tensor], seen_QC: Tensor | None, scale: float
) -> Look:
    """What all queries see of one trunk, whose keys and values are (J, L, D): pages, or all."""
    states = States(*(one.transpose(0, 1) for one in (query_HQD, *pages)))
    if kernel_for(states) is FLASH:
        return _by_pages(query_HQD, pages, seen_QC, scale)
    groups = len(query_HQD) // len(pages[0])
    keys, values = (one.repeat_interleave(groups, 0)[None] for one in pages)
    mask = None
    if seen_QC is not None:
        seen_QL = seen_QC.repeat_interleave(PAGE, 1)
        mask = query_HQD.new_zeros(seen_QL.shape).masked_fill_(~seen_QL, _lowest(query_HQD))
    look = _look(query_HQD[None], keys, values, None if mask is None else mask[None, None], scale)
    return Look(look.output[0], look.lse[0])


def _by_pages(
    query_HQD: Tensor, pages: tuple[Tensor, Tensor], seen_QC: Tensor | None, scale: float
) -> Look:
    """Where rows see different pages, each is looked at by itself: that keeps a GPU busy."""
    count = 1 if seen_QC is None else seen_QC.shape[1]
    query_CQHD = query_HQD.transpose(0, 1).expand(count, -1, -1, -1)
    key_CPJD, value_CPJD = (one.unflatten(1, (count, -1)).permute(1, 2, 0, 3) for one in pages)
    options = (0.0, False, False)  # no dropout, no mask, no debug mask
    output_CQHD, lse_CHQ, *_ = torch.ops.aten._flash_attention_forward(
        query_CQHD,
        key_CPJD,
        value_CPJD,
        *(None, None, query_CQHD.shape[1], key_CPJD.shape[1]),
        *options,
        scale=scale,
    )
    output_CHQD = output_CQHD.transpose(1, 2)
    if seen_QC is None:
        return Look(output_CHQD[0], lse_CHQ[0])
    hidden_C1Q = ~seen_QC.transpose(0, 1)[:, None]
    return _joined(Look(output_CHQD, lse_CHQ.masked_fill(hidden_C1Q, _lowest(lse_CHQ))))


def _look(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Look:
    """As SDPA, with as many key heads as query heads, and the sums besides."""
    if not query.is_cuda:
        found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, attn_mask=mask, scale=scale
        )
        return Look(*found)
    bias = None if mask is None else _aligned(mask).expand(*query.shape[:3], -1)
    output, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, compute_log_sumexp=True, scale=scale
    )
    return Look(output, lse[..., : query.shape[2]])  # it rounds their number up


def _aligned(mask: Tensor) -> Tensor:
    length = mask.shape[-1]
    return torch.nn.functional.pad(mask, (0, -length % ALIGNED))[..., :length]


def _joined(looks: Look) -> Look:
    """Looks of the same queries, one after another, as if they had been one; in float32."""
    shares = looks.lse.softmax(0)[..., None]
    return Look((shares * looks.output).sum(0), looks.lse.logsumexp(0))


def _lowest(like: Tensor) -> float:
    """A score that counts for nothing and is still a number, where there is no other.

    Not the lowest there is: kernels multiply scores, and what overflows would not be a number.
    """
    return max(torch.finfo(like.dtype).min, -1e30)
