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


def draw(logits_BV: Tensor, draws: Sequence[Draw]) -> list[Drawn]:
    """One token per row; a row's does not depend on the others."""
    warmth = [[one.temperature or 1.0] for one in draws]
    temperatures_B1 = torch.tensor(warmth, device=logits_BV.device)
    logprobs_BV = (logits_BV.float() / temperatures_B1).log_softmax(dim=-1)
    tokens_B = logprobs_BV.argmax(dim=-1)
    warm = [row for row, one in enumerate(draws) if one.temperature > 0]
    if warm:
        rows = torch.tensor(warm, device=logits_BV.device)
        tokens_B[rows] = _invert(logprobs_BV[rows], [draws[row] for row in warm])
    picked_B = logprobs_BV.gather(1, tokens_B[:, None])[:, 0]
    pairs = torch.stack([tokens_B.double(), picked_B.double()], dim=1).tolist()  # one transfer
    if any(math.isnan(logprob) for _, logprob in pairs):
        raise FloatingPointError(
            "the policy's logits are not numbers: its weights have diverged. Resume from an "
            "earlier checkpoint with a lower learning_rate."
        )
    return [Drawn(int(token), logprob) for token, logprob in pairs]


def _invert(logprobs_BV: Tensor, draws: Sequence[Draw]) -> Tensor:
    """The token at which the cumulative probability passes the draw's number."""
    probs_BV = logprobs_BV.double().exp()
    if any(one.top_p < 1 for one in draws):
        probs_BV = _truncated(probs_BV, [one.top_p for one in draws])
    numbers = [[one.number] for one in draws]
    numbers_B1 = torch.tensor(numbers, dtype=torch.double, device=probs_BV.device)
    cumulative_BV = probs_BV.cumsum(dim=-1)
    targets_B1 = numbers_B1 * cumulative_BV[:, -1:]
    tokens_B1 = torch.searchsorted(cumulative_BV, targets_B1, right=True)
    return tokens_B1[:, 0].clamp(max=probs_BV.shape[1] - 1)


def _truncated(probs_BV: Tensor, top_ps: Sequence[float]) -> Tensor:
    """Zero outside the likeliest tokens that together reach ``top_p``."""
    limits = [[top_p] if top_p < 1 else [math.inf] for top_p in top_ps]
    limits_B1 = torch.tensor(limits, dtype=torch.double, device=probs_BV.device)
    ordered_BV, tokens_BV = probs_BV.sort(dim=-1, descending=True, stable=True)
    before_BV = ordered_BV.cumsum(dim=-1) - ordered_BV
    kept_BV = ordered_BV.masked_fill(before_BV >= limits_B1, 0.0)
    return torch.empty_like(probs_BV).scatter_(1, tokens_BV, kept_BV)
