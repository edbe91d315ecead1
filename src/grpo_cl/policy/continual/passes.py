"""Passes over stored trajectories, shared by the ranks: losses to learn from, values to keep.

Like an update, a pass plan is a function of the samples alone, so every rank works out the same.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from grpo_cl.policy.batching import MicroBatch, Sample, collate, micro_batches, spread
from grpo_cl.policy.learner import Learner
from grpo_cl.policy.model import PolicyModel
from grpo_cl.types import TokenTrace

Value = TypeVar("Value")


class Part(NamedTuple):
    """A pass's part of a loss, and sums that are worth telling."""

    loss: Tensor
    sums: Tensor
    """One number per name of ``shared_loss``; carries no gradient."""


class SharedLoss(NamedTuple):
    """What this rank gives to its learner, and the sums of all ranks."""

    loss: Tensor
    sums: dict[str, float]


def shared_loss(
    learner: Learner,
    samples: Sequence[Sample],
    part_of: Callable[[list[Sample]], Part],
    names: Sequence[str],
) -> SharedLoss:
    """The sum of ``part_of`` over passes through ``samples``, as an auxiliary loss.

    A learner takes the mean of its ranks' auxiliary losses, so this one is the rank's own part
    times their number. With several passes each is made again when it is differentiated: the
    memory of one is enough.
    """
    own = _passes(learner, samples)[learner.ranks.rank]
    parts = [_remade(part_of, part) if len(own) > 1 else part_of(part) for part in own]
    total = torch.stack([part.loss for part in parts]).sum()
    sums: list[float] = torch.stack([part.sums.double() for part in parts]).sum(0).tolist()
    named = learner.ranks.sum(dict(zip(names, sums, strict=True)))
    return SharedLoss(total * learner.ranks.world_size, named)


def measured(
    learner: Learner, samples: Sequence[Sample], values_of: Callable[[list[Sample]], list[Value]]
) -> list[Value]:
    """``values_of`` each sample, without gradients; every rank gets those of all."""
    if not samples:
        return []
    place = {id(sample): number for number, sample in enumerate(samples)}
    found: dict[int, Value] = {}
    with torch.no_grad():
        for part in _passes(learner, samples)[learner.ranks.rank]:
            pairs = zip(part, values_of(part), strict=True)
            found |= {place[id(s)]: value for s, value in pairs if id(s) in place}
    gathered = [item for part in learner.ranks.gather(found) for item in part.items()]
    return [value for _, value in sorted(gathered, key=lambda item: item[0])]


def trace_logprobs(learner: Learner, traces: Sequence[TokenTrace]) -> list[tuple[float, ...]]:
    """Log-probs of the tokens under each mask, which has some, as today's policy has them."""

    def values_of(part: list[Sample]) -> list[tuple[float, ...]]:
        batch = collate(part, learner.policy.device)
        logprobs_BT = scored(learner, batch)
        return [tuple(row[mask].tolist()) for row, mask in zip(logprobs_BT, batch.mask_BT)]  # noqa: B905  # both are tensors of B rows

    return measured(learner, plain_samples(traces), values_of)


def scored(learner: Learner, batch: MicroBatch) -> Tensor:
    """Log-probs at the temperature of training; 0 off the mask."""
    policy: PolicyModel = learner.policy
    return policy.logprobs(
        batch.ids_BT,
        batch.attention_BT,
        mask_BT=batch.mask_BT,
        temperature=learner.config.temperature,
        layout=batch.layout,
    ).logprobs_BT


def plain_samples(traces: Sequence[TokenTrace]) -> list[Sample]:
    """Traces as samples whose tokens all count the same, and together one."""
    total = sum(sum(trace.mask) for trace in traces)
    return [Sample(trace, tuple(map(float, trace.mask)), 1 / total) for trace in traces]


def _remade(part_of: Callable[[list[Sample]], Part], part: list[Sample]) -> Part:
    return Part(*cast(tuple[Any, Any], checkpoint(part_of, part, use_reentrant=False)))


def _passes(learner: Learner, samples: Sequence[Sample]) -> list[list[list[Sample]]]:
    """Each rank's passes, as many for each: one that is done goes on with a sample of no weight."""
    budget = learner.config.optimizer.micro_batch_tokens
    plans = [micro_batches(share, budget) for share in spread(samples, learner.ranks.world_size)]
    idle = min(samples, key=lambda sample: sample.length)._replace(weight=0.0)
    count = max(map(len, plans))
    return [plan + [[idle]] * (count - len(plan)) for plan in plans]
