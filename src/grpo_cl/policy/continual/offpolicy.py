"""Learning from stored trajectories: truncated importance weights per token, and cloning.

Ratios are of single tokens: those of whole sequences have a variance that grows with the length,
and at a thousand tokens nearly all weight lies on one sequence. Shapes: B sequences, T positions.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_cl.advantages import token_advantages
from grpo_cl.buffer import Experience
from grpo_cl.config import GRPOConfig
from grpo_cl.policy.batching import MicroBatch, Sample, collate
from grpo_cl.policy.continual.memory import written
from grpo_cl.policy.continual.passes import Part, SharedLoss, scored, shared_loss
from grpo_cl.policy.learner import Learner
from grpo_cl.policy.loss import LOG_RATIO_LIMIT, kl_terms, loss_lengths, sequence_weights

NAMES = ("tokens", "weight", "clone_kl", "sequences", "dropped")


class Rules(NamedTuple):
    """How stored trajectories are learned from."""

    cap: float
    """The largest weight of a token."""
    max_drift: float
    """The mean of a trajectory's |log ratio| above which its rewards teach nothing."""
    cloning: float
    """Weight of KL(sampler, policy) on its tokens."""


def stored_samples(
    records: Sequence[Experience], config: GRPOConfig, *, scale: float
) -> list[Sample]:
    """Stored episodes with the advantage they had, weighed as in an update, times ``scale``."""
    found = [(trace, record.advantage) for record in records if (trace := written(record))]
    lengths = loss_lengths([trace for trace, _ in found], overlong=config.loss.overlong)
    weights = sequence_weights(lengths, config.loss.kind, max_tokens=config.max_new_tokens)
    return [
        Sample(trace, token_advantages(trace, advantage or 0.0), scale * weight)
        for (trace, advantage), weight in zip(found, weights, strict=True)
        if weight
    ]


def off_policy_loss(learner: Learner, samples: Sequence[Sample], rules: Rules) -> SharedLoss:
    """The auxiliary loss of stored samples, whose ``NAMES`` are summed."""

    def part_of(part: list[Sample]) -> Part:
        batch = collate(part, learner.policy.device)
        return off_policy_part(scored(learner, batch), batch, rules)

    return shared_loss(learner, samples, part_of, NAMES)


def off_policy_part(logprobs_BT: Tensor, batch: MicroBatch, rules: Rules) -> Part:
    """The loss of one pass: a policy gradient whose weights are min(pi/mu, cap), and cloning."""
    mask_BT = batch.mask_BT & (batch.weights_B != 0)[:, None]
    policy_BT = torch.where(mask_BT, logprobs_BT, 0.0)
    sampler_BT = torch.where(mask_BT, batch.sampler_logprobs_BT, 0.0)
    log_ratio_BT = (policy_BT - sampler_BT).detach()
    drift_B = log_ratio_BT.abs().sum(1) / mask_BT.sum(1).clamp(min=1)
    is_near_B = drift_B <= rules.max_drift
    bounded_BT = log_ratio_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    weights_BT = bounded_BT.exp().clamp(max=rules.cap) * is_near_B[:, None]
    # One in value, with the policy's own gradient: weights are constants, so a capped token learns.
    unit_BT = (policy_BT - policy_BT.detach()).exp()
    clone_BT = kl_terms(sampler_BT, policy_BT, "k3")
    terms_BT = -weights_BT * batch.advantages_BT * unit_BT
    if rules.cloning:
        terms_BT = terms_BT + rules.cloning * clone_BT
    loss = (batch.weights_B * terms_BT.sum(1)).sum()
    counted_B = batch.weights_B != 0
    sums = (mask_BT, weights_BT * mask_BT, clone_BT.detach(), counted_B, counted_B & ~is_near_B)
    return Part(loss, torch.stack([values.double().sum() for values in sums]))
