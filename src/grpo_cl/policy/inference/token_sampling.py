"""Temperature and top-p sampling of one token per row, by inverting the cumulative distribution.

Shapes: B rows, V vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_cl.errors import TrainingError

CANDIDATES = 64
"""Tokens that a constraint is asked about at once."""


class SampleParams(NamedTuple):
    """How one token is sampled."""

    uniform: float
    """A random number in [0, 1): the quantile of the cumulative distribution to take."""
    temperature: float
    """0 is greedy decoding."""
    top_p: float


class SampledToken(NamedTuple):
    """A token and its log-prob."""

    id: int
    logprob: float
    """At the sampling temperature over the full vocabulary, before ``top_p`` filtering, as a
    trainer computes it; greedy tokens report temperature 1."""


def sample(logits_BV: Tensor, params: Sequence[SampleParams]) -> Tensor:
    """Token and log-prob of each row as float64 [B, 2]; rows do not depend on each other."""
    columns = torch.tensor(params, dtype=torch.double, device=logits_BV.device).unsqueeze(-1)
    uniforms_B1, temperatures_B1, top_ps_B1 = columns.unbind(1)
    has_top_p = any(row.top_p < 1 for row in params)
    return sample_rows(logits_BV, uniforms_B1, temperatures_B1, top_ps_B1 if has_top_p else None)


def constrain(logits_V: Tensor, allow: Callable[[Sequence[int]], Sequence[int]]) -> Tensor:
    """The logits with those of other tokens at minus infinity.

    ``allow`` is asked about the most likely tokens first, ``CANDIDATES`` at a time, and no further
    after those of which it returns any. Without a token that is allowed all stay.
    """
    most_likely = logits_V.topk(min(CANDIDATES, len(logits_V))).indices.tolist()
    allowed = allow(most_likely)
    if not allowed:  # seldom: the whole vocabulary takes milliseconds to sort
        order = logits_V.argsort(descending=True, stable=True).tolist()
        parts = (order[start : start + CANDIDATES] for start in range(0, len(order), CANDIDATES))
        allowed = next(filter(None, map(allow, parts)), ())
    if not allowed:
        return logits_V
    constrained_V = torch.full_like(logits_V, -math.inf)
    constrained_V[list(allowed)] = logits_V[list(allowed)]
    return constrained_V


def to_sampled_tokens(pairs: Sequence[Sequence[float]]) -> list[SampledToken]:
    """Pairs of token and log-prob, copied to the host, as tokens; a NaN raises an error."""
    if any(math.isnan(logprob) for _, logprob in pairs):
        raise TrainingError(
            "the policy's logits are not numbers: its weights have diverged. Resume from an "
            "earlier checkpoint with a lower learning_rate."
        )
    return [SampledToken(int(token), logprob) for token, logprob in pairs]


def sample_rows(
    logits_BV: Tensor, uniforms_B1: Tensor, temperatures_B1: Tensor, top_ps_B1: Tensor | None
) -> Tensor:
    """Token and log-prob of each row as float64 [B, 2]; ``top_ps_B1=None`` disables top-p.

    There is no device-to-host synchronisation.
    """
    is_greedy_B1 = temperatures_B1 == 0
    divisors_B1 = torch.where(is_greedy_B1, 1.0, temperatures_B1).float()
    logprobs_BV = (logits_BV.float() / divisors_B1).log_softmax(dim=-1)
    argmax_B1 = logprobs_BV.argmax(dim=-1, keepdim=True)
    sampled_B1 = _inverse_cdf(logprobs_BV, uniforms_B1, top_ps_B1)
    tokens_B1 = torch.where(is_greedy_B1, argmax_B1, sampled_B1)
    return torch.cat([tokens_B1.double(), logprobs_BV.gather(1, tokens_B1).double()], dim=1)


def _inverse_cdf(logprobs_BV: Tensor, uniforms_B1: Tensor, top_ps_B1: Tensor | None) -> Tensor:
    """The token at which the cumulative probability exceeds the uniform number."""
    probs_BV = logprobs_BV.double().exp()
    if top_ps_B1 is not None:
        probs_BV = _apply_top_p(probs_BV, top_ps_B1)
    cumulative_BV = probs_BV.cumsum(dim=-1)
    targets_B1 = uniforms_B1 * cumulative_BV[:, -1:]
    tokens_B1 = torch.searchsorted(cumulative_BV, targets_B1, right=True)
    return tokens_B1.clamp(max=probs_BV.shape[1] - 1)


def _apply_top_p(probs_BV: Tensor, top_ps_B1: Tensor) -> Tensor:
    """Zero outside the smallest set of most likely tokens whose probability reaches ``top_p``."""
    limits_B1 = torch.where(top_ps_B1 < 1, top_ps_B1, math.inf)
    sorted_BV, tokens_BV = probs_BV.sort(dim=-1, descending=True, stable=True)
    before_BV = sorted_BV.cumsum(dim=-1) - sorted_BV
    kept_BV = sorted_BV.masked_fill(before_BV >= limits_B1, 0.0)
    return torch.empty_like(probs_BV).scatter_(1, tokens_BV, kept_BV)
