"""Holding a policy to an earlier one: on the tokens it chose, or on whole distributions.

Shapes: B sequences, T positions, N tokens under the masks of a pass or a trajectory, K tokens that
were the likeliest at a position, V vocabulary.
"""

from collections.abc import Sequence
from functools import partial
from math import exp
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from grpo_cl.buffer import Experience
from grpo_cl.policy.batching import MicroBatch, Sample, collate
from grpo_cl.policy.continual.memory import Kept
from grpo_cl.policy.continual.passes import (
    Part,
    SharedLoss,
    measured,
    plain_samples,
    scored,
    shared_loss,
    trace_logprobs,
)
from grpo_cl.policy.learner import Learner
from grpo_cl.policy.loss import kl_terms
from grpo_cl.policy.scoring import scored_positions
from grpo_cl.types import TokenTrace

Estimator = Literal["k2", "k3", "nll"]
TOKEN_NAMES = ("tokens", "kl")
SHARE_NAMES = ("tokens", "kl", "nll")
WEIGHT_CAP = 2.0
"""The largest weight of a token that the earlier policy liked more than the one that drew it."""


class Scored(NamedTuple):
    """What an earlier policy thought of the tokens of a trace."""

    trace: TokenTrace
    logprobs: tuple[float, ...]


def keep_logprobs(learner: Learner, found: Sequence[tuple[Experience, TokenTrace]]) -> list[Kept]:
    """Trajectories with today's policy's log-probs of their tokens."""
    rows = trace_logprobs(learner, [trace for _, trace in found])
    return [
        Kept(trace, record.reward, {"logprobs": torch.tensor(row, dtype=torch.float64)})
        for (record, trace), row in zip(found, rows, strict=True)
    ]


def old_samples(kept: Sequence[Kept]) -> list[Sample]:
    """Kept tokens, weighed as if the policy at the end of its stage had drawn them.

    They were drawn by a policy mu of some step of the stage; min(pi_end/mu, cap) makes up for it.
    """
    scored_traces = [Scored(one.trace, tuple(one.columns["logprobs"].tolist())) for one in kept]
    return _samples(scored_traces, is_weighed=True)


def current_samples(scored_traces: Sequence[Scored]) -> list[Sample]:
    """Tokens that today's policy drew, to be held to an earlier one's opinion of them."""
    return _samples(scored_traces, is_weighed=False)


def token_kl_loss(
    learner: Learner, samples: Sequence[Sample], estimator: Estimator, *, is_old: bool
) -> SharedLoss:
    """The mean divergence per token from the policy whose log-probs the samples carry."""

    def part_of(part: list[Sample]) -> Part:
        batch = collate(part, learner.policy.device)
        return token_kl_part(scored(learner, batch), batch, estimator, is_old=is_old)

    return shared_loss(learner, samples, part_of, TOKEN_NAMES)


def token_kl_part(
    logprobs_BT: Tensor, batch: MicroBatch, estimator: Estimator, *, is_old: bool
) -> Part:
    """The divergence on one pass; ``is_old`` says that the earlier policy drew the tokens.

    Then k3 and nll have the gradient of KL(earlier, policy). On tokens of the policy itself k3 has
    the same gradient and k2 that of KL(policy, earlier); the mean of nll's would be 0.
    """
    mask_BT = batch.mask_BT & (batch.weights_B != 0)[:, None]
    policy_BT = torch.where(mask_BT, logprobs_BT, 0.0)
    earlier_BT = torch.where(mask_BT, batch.sampler_logprobs_BT, 0.0)
    drawn_BT, other_BT = (earlier_BT, policy_BT) if is_old else (policy_BT, earlier_BT)
    weights_BT = torch.where(mask_BT, batch.advantages_BT, 0.0)
    terms_BT = kl_terms(drawn_BT, other_BT, "k1" if estimator == "nll" else estimator)
    loss = (batch.weights_B * (weights_BT * terms_BT).sum(1)).sum()
    told_BT = weights_BT * kl_terms(drawn_BT, other_BT, "k3").detach()
    return Part(loss, torch.stack([mask_BT.sum().double(), told_BT.double().sum()]))


def keep_shares(
    learner: Learner, found: Sequence[tuple[Experience, TokenTrace]], top: int
) -> list[Kept]:
    """Trajectories with today's ``top`` likeliest tokens at each position of the policy's own."""

    def values_of(part: list[Sample]) -> list[dict[str, Tensor]]:
        batch = collate(part, learner.policy.device)
        tokens_NK, shares_NK = learner.policy.map_logits(
            partial(_top_shares, top=top, temperature=learner.config.temperature),
            batch.ids_BT,
            batch.attention_BT,
            mask_BT=batch.mask_BT,
            layout=batch.layout,
        )
        counts = scored_positions(batch.attention_BT, batch.mask_BT).sum(1).tolist()
        pairs = zip(tokens_NK.split(counts), shares_NK.split(counts), strict=True)
        return [{"tokens": tokens.int().cpu(), "shares": shares.cpu()} for tokens, shares in pairs]

    columns = measured(learner, plain_samples([trace for _, trace in found]), values_of)
    return [
        Kept(trace, record.reward, own) for (record, trace), own in zip(found, columns, strict=True)
    ]


def share_loss(learner: Learner, kept: Sequence[Kept], *, alpha: float, beta: float) -> SharedLoss:
    """``alpha`` KL(kept, policy) + ``beta`` NLL of the tokens of successes, means per token."""
    own = {id(one.trace): one for one in kept}

    def part_of(part: list[Sample]) -> Part:
        batch = collate(part, learner.policy.device)
        chosen = [own[id(sample.trace)] for sample in part]
        return _share_part(learner, batch, chosen, (alpha, beta))

    samples = plain_samples([one.trace for one in kept])
    return shared_loss(learner, samples, part_of, SHARE_NAMES)


def share_kl(kept_NK: Tensor, policy_NK: Tensor) -> Tensor:
    """KL of one distribution from another at each of N positions, from log-shares."""
    chances_NK = kept_NK.exp()
    # 0 · log 0 is 0, also where the policy's own share is 0 too.
    gaps_NK = torch.where(chances_NK > 0, kept_NK - policy_NK, 0.0)
    return (chances_NK * gaps_NK).sum(-1)


def log_shares(logits_NV: Tensor, tokens_NK: Tensor) -> Tensor:
    """Log-probs of the given tokens and, if there are any others, of all of those together."""
    normaliser_N1 = logits_NV.logsumexp(-1, keepdim=True)
    own_NK = logits_NV.gather(-1, tokens_NK) - normaliser_N1
    if tokens_NK.shape[-1] == logits_NV.shape[-1]:
        return own_NK
    rest_NV = logits_NV.scatter(-1, tokens_NK, -torch.inf)
    return torch.cat([own_NK, rest_NV.logsumexp(-1, keepdim=True) - normaliser_N1], dim=-1)


def _samples(scored_traces: Sequence[Scored], *, is_weighed: bool) -> list[Sample]:
    total = sum(len(one.logprobs) for one in scored_traces)
    return [
        Sample(
            trace.model_copy(update={"logprobs": logprobs}),
            _token_weights(trace, logprobs) if is_weighed else tuple(map(float, trace.mask)),
            1 / total,
        )
        for trace, logprobs in scored_traces
    ]


def _token_weights(trace: TokenTrace, logprobs: Sequence[float]) -> tuple[float, ...]:
    gaps = zip(logprobs, trace.logprobs, strict=True)
    ratios = iter([exp(min(later - drawn, 1.0)) for later, drawn in gaps])
    return tuple(min(next(ratios), WEIGHT_CAP) if masked else 0.0 for masked in trace.mask)


def _share_part(
    learner: Learner, batch: MicroBatch, chosen: Sequence[Kept], scales: tuple[float, float]
) -> Part:
    device = learner.policy.device
    tokens_NK, kept_NK = (
        torch.cat([one.columns[name] for one in chosen]).to(device) for name in ("tokens", "shares")
    )
    wanted_BT = scored_positions(batch.attention_BT, batch.mask_BT)
    shares_NK, nll_N = learner.policy.map_logits(
        partial(_policy_shares, temperature=learner.config.temperature),
        batch.ids_BT,
        batch.attention_BT,
        mask_BT=batch.mask_BT,
        given=(tokens_NK.long(), batch.ids_BT[:, 1:][wanted_BT]),
        layout=batch.layout,
    )
    is_success_B = torch.tensor([float(one.reward >= 1) for one in chosen], device=device)
    places_N = wanted_BT.nonzero()[:, 0]
    weights_N, success_N = batch.weights_B[places_N], is_success_B[places_N]
    kl_N = share_kl(kept_NK, shares_NK)
    alpha, beta = scales
    loss = (weights_N * (alpha * kl_N + beta * success_N * nll_N)).sum()
    counted_N = (weights_N != 0).double()
    told = (counted_N, counted_N * kl_N.detach(), counted_N * success_N * nll_N.detach())
    return Part(loss, torch.stack([values.sum() for values in told]))


def _top_shares(logits_NV: Tensor, *, top: int, temperature: float) -> tuple[Tensor, Tensor]:
    scaled_NV = logits_NV / temperature
    tokens_NK = scaled_NV.topk(min(top, scaled_NV.shape[-1]), dim=-1).indices
    return tokens_NK, log_shares(scaled_NV, tokens_NK)


def _policy_shares(
    logits_NV: Tensor, tokens_NK: Tensor, targets_N: Tensor, *, temperature: float
) -> tuple[Tensor, Tensor]:
    scaled_NV = logits_NV / temperature
    nll_N = scaled_NV.logsumexp(-1) - scaled_NV.gather(-1, targets_N[:, None])[:, 0]
    return log_shares(scaled_NV, tokens_NK), nll_N
