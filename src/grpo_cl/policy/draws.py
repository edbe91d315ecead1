"""Drawing the next token of every reply of a batch.

Shapes: B replies, V vocabulary.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Draw(NamedTuple):
    """How one token is drawn."""

    number: float
    """Where in [0, 1) the cumulative probability is cut."""
    temperature: float
    """0 takes the likeliest token."""
    top_p: float


class Drawn(NamedTuple):
    """A token."""

    id: int
    logprob: float
    """At the draw's temperature over the whole vocabulary, whatever ``top_p`` left out, as a
    trainer computes it; of a greedy token at temperature 1."""


def draw(logits_BV: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Each row's token and its log-prob, of float64; a row's do not depend on the others."""
    columns = torch.tensor(draws, dtype=torch.double, device=logits_BV.device).unsqueeze(-1)
    numbers_B1, temperatures_B1, top_ps_B1 = columns.unbind(1)
    is_cut = any(one.top_p < 1 for one in draws)
    return draw_rows(logits_BV, numbers_B1, temperatures_B1, top_ps_B1 if is_cut else None)


def drawn(pairs: Sequence[Sequence[float]]) -> list[Drawn]:
    """Tokens from numbers that have left the device."""
    if any(math.isnan(logprob) for _, logprob in pairs):
        raise FloatingPointError(
            "the policy's logits are not numbers: its weights have diverged. Resume from an "
            "earlier checkpoint with a lower learning_rate."
        )
    return [Drawn(int(token), logprob) for token, logprob in pairs]


def draw_rows(
    logits_BV: Tensor, numbers_B1: Tensor, temperatures_B1: Tensor, top_ps_B1: Tensor | None
) -> Tensor:
    """Each row's token and its log-prob, of float64; nothing is cut without top_ps.

    No value is looked at by the host.
    """
    is_greedy_B1 = temperatures_B1 == 0
    warmth_B1 = torch.where(is_greedy_B1, 1.0, temperatures_B1).float()
    logprobs_BV = (logits_BV.float() / warmth_B1).log_softmax(dim=-1)
    likeliest_B1 = logprobs_BV.argmax(dim=-1, keepdim=True)
    tokens_B1 = torch.where(is_greedy_B1, likeliest_B1, _invert(logprobs_BV, numbers_B1, top_ps_B1))
    return torch.cat([tokens_B1.double(), logprobs_BV.gather(1, tokens_B1).double()], dim=1)


def _invert(logprobs_BV: Tensor, numbers_B1: Tensor, top_ps_B1: Tensor | None) -> Tensor:
    """The token at which the cumulative probability passes the number."""
    probs_BV = logprobs_BV.double().exp()
    if top_ps_B1 is not None:
        probs_BV = _truncated(probs_BV, top_ps_B1)
    cumulative_BV = probs_BV.cumsum(dim=-1)
    targets_B1 = numbers_B1 * cumulative_BV[:, -1:]
    tokens_B1 = torch.searchsorted(cumulative_BV, targets_B1, right=True)
    return tokens_B1.clamp(max=probs_BV.shape[1] - 1)


def _truncated(probs_BV: Tensor, top_ps_B1: Tensor) -> Tensor:
    """Zero outside the likeliest tokens that together reach ``top_p``."""
    limits_B1 = torch.where(top_ps_B1 < 1, top_ps_B1, math.inf)
    ordered_BV, tokens_BV = probs_BV.sort(dim=-1, descending=True, stable=True)
    before_BV = ordered_BV.cumsum(dim=-1) - ordered_BV
    kept_BV = ordered_BV.masked_fill(before_BV >= limits_B1, 0.0)
    return torch.empty_like(probs_BV).scatter_(1, tokens_BV, kept_BV)
