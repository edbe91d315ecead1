"""Distillation from an old policy: on sampled tokens (KL estimators), or on top-k distributions.

Shapes: B sequences, T positions, N tokens under the masks of a batch or a trajectory, K likeliest
tokens of a position, V vocabulary.
"""

from collections.abc import Sequence
from functools import partial
from math import exp
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from grpo_cl.policy.continual.episodic_memory import MemoryEpisode
from grpo_cl.policy.continual.passes import (
    PartialLoss,
    RankLoss,
    batch_logprobs,
    map_samples,
    rank_loss,
    trace_logprobs,
    uniform_samples,
)
from grpo_cl.policy.learner.batching import MicroBatch, TrainingSample, collate
from grpo_cl.policy.learner.learner import Learner
from grpo_cl.policy.learner.loss import kl_terms
from grpo_cl.policy.model.logprobs import scored_positions
from grpo_cl.runs.reservoir import Experience
from grpo_cl.types import TokenTrace

Estimator = Literal["k2", "k3", "nll"]
LOGPROBS = "logprobs"
"""Column of a memory episode: log-probs of its tokens, [N]."""
TOP_TOKENS, TOP_LOGPROBS = "tokens", "shares"
"""Columns of a memory episode: the likeliest tokens, [N, K], and their log-probs, [N, K or K+1]."""
WEIGHT_CAP = 2.0
"""The largest importance weight of a token that the old policy prefers to its sampler."""


class ScoredTrace(NamedTuple):
    """A trace with an old policy's log-probs of its tokens."""

    trace: TokenTrace
    logprobs: tuple[float, ...]


def record_logprobs(
    learner: Learner, stored: Sequence[tuple[Experience, TokenTrace]]
) -> list[MemoryEpisode]:
    """Memory episodes with the current policy's log-probs of their tokens."""
    rows = trace_logprobs(learner, [trace for _, trace in stored])
    return [
        MemoryEpisode(trace, record.reward, {LOGPROBS: torch.tensor(row, dtype=torch.float64)})
        for (record, trace), row in zip(stored, rows, strict=True)
    ]


def memory_samples(episodes: Sequence[MemoryEpisode]) -> list[TrainingSample]:
    """Tokens in memory, importance-weighted as samples of the policy at the end of their stage.

    A policy μ of some step of the stage sampled them; the weight is min(π_end/μ, WEIGHT_CAP).
    """
    scored = [ScoredTrace(e.trace, tuple(e.columns[LOGPROBS].tolist())) for e in episodes]
    return _samples(scored, is_weighted=True)


def on_policy_samples(scored: Sequence[ScoredTrace]) -> list[TrainingSample]:
    """Tokens that the current policy sampled, with an old policy's log-probs."""
    return _samples(scored, is_weighted=False)


def token_kl_loss(
    learner: Learner, samples: Sequence[TrainingSample], estimator: Estimator, *, is_old: bool
) -> RankLoss:
    """The mean divergence per token from the policy whose log-probs the samples carry."""

    def partial_loss(part: list[TrainingSample]) -> PartialLoss:
        batch = collate(part, learner.policy.device)
        return token_kl_terms(batch_logprobs(learner, batch), batch, estimator, is_old=is_old)

    return rank_loss(learner, samples, partial_loss, ("tokens", "kl"))


def token_kl_terms(
    logprobs_BT: Tensor, batch: MicroBatch, estimator: Estimator, *, is_old: bool
) -> PartialLoss:
    """The divergence of one micro-batch; ``is_old``: the tokens are samples of the old policy.

    Then k3 and nll have the gradient of KL(old, policy). On samples of the policy itself k3 has
    the same gradient and k2 that of KL(policy, old); the mean gradient of nll would be 0.
    """
    mask_BT = batch.mask_BT & (batch.weights_B != 0)[:, None]
    policy_BT = torch.where(mask_BT, logprobs_BT, 0.0)
    old_BT = torch.where(mask_BT, batch.sampler_logprobs_BT, 0.0)
    sampler_BT, other_BT = (old_BT, policy_BT) if is_old else (policy_BT, old_BT)
    weights_BT = torch.where(mask_BT, batch.advantages_BT, 0.0)
    terms_BT = kl_terms(sampler_BT, other_BT, "k1" if estimator == "nll" else estimator)
    loss = (batch.weights_B * (weights_BT * terms_BT).sum(1)).sum()
    kl_BT = weights_BT * kl_terms(sampler_BT, other_BT, "k3").detach()
    return PartialLoss(loss, torch.stack([mask_BT.sum().double(), kl_BT.double().sum()]))


def record_top_logprobs(
    learner: Learner, stored: Sequence[tuple[Experience, TokenTrace]], top: int
) -> list[MemoryEpisode]:
    """Memory episodes with the current policy's ``top`` likeliest tokens at each position."""

    def compute(samples: list[TrainingSample]) -> list[dict[str, Tensor]]:
        batch = collate(samples, learner.policy.device)
        tokens_NK, logprobs_NK = learner.policy.map_logits(
            partial(_top_logprobs, top=top, temperature=learner.config.temperature),
            batch.ids_BT,
            batch.attention_BT,
            mask_BT=batch.mask_BT,
            layout=batch.layout,
        )
        counts = scored_positions(batch.attention_BT, batch.mask_BT).sum(1).tolist()
        pairs = zip(tokens_NK.split(counts), logprobs_NK.split(counts), strict=True)
        return [
            {TOP_TOKENS: tokens.int().cpu(), TOP_LOGPROBS: logprobs.cpu()}
            for tokens, logprobs in pairs
        ]

    columns = map_samples(learner, uniform_samples([trace for _, trace in stored]), compute)
    return [
        MemoryEpisode(trace, record.reward, own)
        for (record, trace), own in zip(stored, columns, strict=True)
    ]


def top_kl_loss(
    learner: Learner, episodes: Sequence[MemoryEpisode], *, alpha: float, beta: float
) -> RankLoss:
    """``alpha`` · mean KL(recorded, policy) + ``beta`` · mean NLL of successes, both per token."""
    by_trace = {id(episode.trace): episode for episode in episodes}
    counts = [(sum(episode.trace.mask), episode.is_success) for episode in episodes]
    num_success = sum(count for count, is_success in counts if is_success)
    # The samples weigh each token by 1 / all tokens.
    nll_scale = beta * sum(count for count, _ in counts) / max(1, num_success)

    def partial_loss(part: list[TrainingSample]) -> PartialLoss:
        batch = collate(part, learner.policy.device)
        own = [by_trace[id(sample.trace)] for sample in part]
        return _top_kl_terms(learner, batch, own, (alpha, nll_scale))

    samples = uniform_samples([episode.trace for episode in episodes])
    return rank_loss(learner, samples, partial_loss, ("tokens", "success_tokens", "kl", "nll"))


def categorical_kl(logp_NK: Tensor, logq_NK: Tensor) -> Tensor:
    """KL(p, q) of categorical distributions given by log-probs, [N]."""
    probs_NK = logp_NK.exp()
    # 0 · log 0 is 0, also where q is 0 too.
    gaps_NK = torch.where(probs_NK > 0, logp_NK - logq_NK, 0.0)
    return (probs_NK * gaps_NK).sum(-1)


def token_logprobs(logits_NV: Tensor, tokens_NK: Tensor) -> Tensor:
    """Log-probs of the given tokens and, if there are others, of all others as one outcome."""
    normalizer_N1 = logits_NV.logsumexp(-1, keepdim=True)
    own_NK = logits_NV.gather(-1, tokens_NK) - normalizer_N1
    if tokens_NK.shape[-1] == logits_NV.shape[-1]:
        return own_NK
    rest_NV = logits_NV.scatter(-1, tokens_NK, -torch.inf)
    return torch.cat([own_NK, rest_NV.logsumexp(-1, keepdim=True) - normalizer_N1], dim=-1)


def _samples(scored: Sequence[ScoredTrace], *, is_weighted: bool) -> list[TrainingSample]:
    total = sum(len(trace.logprobs) for trace in scored)
    return [
        TrainingSample(
            trace.model_copy(update={"logprobs": logprobs}),
            _token_weights(trace, logprobs) if is_weighted else (1.0,) * len(logprobs),
            1 / total,
        )
        for trace, logprobs in scored
    ]


def _token_weights(trace: TokenTrace, logprobs: Sequence[float]) -> tuple[float, ...]:
    pairs = zip(logprobs, trace.logprobs, strict=True)
    return tuple(min(exp(min(end - sampler, 1.0)), WEIGHT_CAP) for end, sampler in pairs)


def _top_kl_terms(
    learner: Learner,
    batch: MicroBatch,
    episodes: Sequence[MemoryEpisode],
    scales: tuple[float, float],
) -> PartialLoss:
    device = learner.policy.device
    tokens_NK, recorded_NK = (
        torch.cat([episode.columns[name] for episode in episodes]).to(device)
        for name in (TOP_TOKENS, TOP_LOGPROBS)
    )
    scored_BT = scored_positions(batch.attention_BT, batch.mask_BT)
    policy_NK, nll_N = learner.policy.map_logits(
        partial(_policy_logprobs, temperature=learner.config.temperature),
        batch.ids_BT,
        batch.attention_BT,
        mask_BT=batch.mask_BT,
        inputs=(tokens_NK.long(), batch.ids_BT[:, 1:][scored_BT]),
        layout=batch.layout,
    )
    is_success_B = torch.tensor([float(e.is_success) for e in episodes], device=device)
    rows_N = scored_BT.nonzero()[:, 0]
    weights_N, success_N = batch.weights_B[rows_N], is_success_B[rows_N]
    kl_N = categorical_kl(recorded_NK, policy_NK)
    kl_scale, nll_scale = scales
    loss = (weights_N * (kl_scale * kl_N + nll_scale * success_N * nll_N)).sum()
    counted_N = (weights_N != 0).double()
    counted_success_N = counted_N * success_N
    sums = (
        counted_N,
        counted_success_N,
        counted_N * kl_N.detach(),
        counted_success_N * nll_N.detach(),
    )
    return PartialLoss(loss, torch.stack([values.sum() for values in sums]))


def _top_logprobs(logits_NV: Tensor, *, top: int, temperature: float) -> tuple[Tensor, Tensor]:
    scaled_NV = logits_NV / temperature
    tokens_NK = scaled_NV.topk(min(top, scaled_NV.shape[-1]), dim=-1).indices
    return tokens_NK, token_logprobs(scaled_NV, tokens_NK)


def _policy_logprobs(
    logits_NV: Tensor, tokens_NK: Tensor, targets_N: Tensor, *, temperature: float
) -> tuple[Tensor, Tensor]:
    scaled_NV = logits_NV / temperature
    nll_N = scaled_NV.logsumexp(-1) - scaled_NV.gather(-1, targets_N[:, None])[:, 0]
    return token_logprobs(scaled_NV, tokens_NK), nll_N
