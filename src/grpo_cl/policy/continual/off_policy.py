"""Off-policy loss on stored trajectories: truncated per-token importance weights, and cloning.

Importance ratios are per token: those of whole sequences have a variance that grows with length,
and at a thousand tokens nearly all weight lies on one sequence. Shapes: B sequences, T positions.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_cl.config import GRPOConfig
from grpo_cl.policy.continual.episodic_memory import policy_trace
from grpo_cl.policy.continual.passes import (
    PartialLoss,
    RankLoss,
    batch_logprobs,
    rank_loss,
)
from grpo_cl.policy.learner.batching import MicroBatch, TrainingSample, collate
from grpo_cl.policy.learner.learner import Learner
from grpo_cl.policy.learner.loss import LOG_RATIO_LIMIT, kl_terms, loss_lengths, sequence_weights
from grpo_cl.rewards.advantages import token_advantages
from grpo_cl.runs.reservoir import Experience

SUM_NAMES = ("tokens", "weight", "clone_kl", "sequences", "dropped")


class OffPolicyParams(NamedTuple):
    """Bounds of the importance weights, and the weight of cloning."""

    cap: float
    """The largest importance weight of a token."""
    max_drift: float
    """The mean |log ratio| of a trajectory above which its policy gradient is dropped."""
    cloning: float
    """Weight of KL(sampler, policy) on its tokens."""


def stored_samples(
    records: Sequence[Experience], config: GRPOConfig, *, scale: float
) -> list[TrainingSample]:
    """Stored episodes with their original advantages, weighted as in an update times ``scale``."""
    usable = [(trace, record.advantage) for record in records if (trace := policy_trace(record))]
    lengths = loss_lengths([trace for trace, _ in usable], overlong=config.loss.overlong)
    weights = sequence_weights(lengths, config.loss.kind, max_tokens=config.max_new_tokens)
    return [
        TrainingSample(trace, token_advantages(trace, advantage or 0.0), scale * weight)
        for (trace, advantage), weight in zip(usable, weights, strict=True)
        if weight
    ]


def off_policy_loss(
    learner: Learner, samples: Sequence[TrainingSample], params: OffPolicyParams
) -> RankLoss:
    """The auxiliary loss of stored samples; ``SUM_NAMES`` are summed over all ranks."""

    def partial_loss(part: list[TrainingSample]) -> PartialLoss:
        batch = collate(part, learner.policy.device)
        return off_policy_terms(batch_logprobs(learner, batch), batch, params)

    return rank_loss(learner, samples, partial_loss, SUM_NAMES)


def off_policy_terms(
    logprobs_BT: Tensor, batch: MicroBatch, params: OffPolicyParams
) -> PartialLoss:
    """The loss of one micro-batch: a policy gradient weighted by min(π/μ, cap), and cloning."""
    mask_BT = batch.mask_BT & (batch.weights_B != 0)[:, None]
    policy_BT = torch.where(mask_BT, logprobs_BT, 0.0)
    sampler_BT = torch.where(mask_BT, batch.sampler_logprobs_BT, 0.0)
    log_ratio_BT = (policy_BT - sampler_BT).detach()
    drift_B = log_ratio_BT.abs().sum(1) / mask_BT.sum(1).clamp(min=1)
    is_near_B = drift_B <= params.max_drift
    bounded_BT = log_ratio_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    weights_BT = bounded_BT.exp().clamp(max=params.cap) * is_near_B[:, None]
    # Value 1 with the gradient of log π: the weights are constants, so capped tokens have one too.
    unit_BT = (policy_BT - policy_BT.detach()).exp()
    clone_BT = kl_terms(sampler_BT, policy_BT, "k3")
    terms_BT = -weights_BT * batch.advantages_BT * unit_BT
    if params.cloning:
        terms_BT = terms_BT + params.cloning * clone_BT
    loss = (batch.weights_B * terms_BT.sum(1)).sum()
    counted_B = batch.weights_B != 0
    sums = (mask_BT, weights_BT * mask_BT, clone_BT.detach(), counted_B, counted_B & ~is_near_B)
    return PartialLoss(loss, torch.stack([values.double().sum() for values in sums]))
