"""Forward and backward passes over stored trajectories, divided over the ranks.

As in an update, the division depends on the samples alone, so every rank computes the same one.
Shapes: B sequences, T token positions.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from grpo_cl.policy.learner.batching import (
    MicroBatch,
    TrainingSample,
    collate,
    plan_micro_batches,
)
from grpo_cl.policy.learner.learner import Learner
from grpo_cl.types import TokenTrace

Value = TypeVar("Value")


class PartialLoss(NamedTuple):
    """The loss of one micro-batch, and sums for metrics."""

    loss: Tensor
    sums: Tensor
    """One number per name given to ``rank_loss``, without gradient."""


class RankLoss(NamedTuple):
    """An auxiliary loss of this rank, and sums over all ranks."""

    loss: Tensor
    sums: dict[str, float]


def rank_loss(
    learner: Learner,
    samples: Sequence[TrainingSample],
    partial_loss: Callable[[list[TrainingSample]], PartialLoss],
    names: Sequence[str],
) -> RankLoss:
    """The sum of ``partial_loss`` over micro-batches of ``samples``, as this rank's auxiliary loss.

    A learner takes the mean of its ranks' auxiliary losses, so this one is the rank's own part
    times their number. Several micro-batches are recomputed in the backward pass (activation
    checkpointing), so that memory for the activations of one is enough.
    """
    own = _rank_batches(learner, samples)[learner.ranks.rank]
    parts = [_checkpointed(partial_loss, b) if len(own) > 1 else partial_loss(b) for b in own]
    total = torch.stack([part.loss for part in parts]).sum()
    sums: list[float] = torch.stack([part.sums.double() for part in parts]).sum(0).tolist()
    named = learner.ranks.sum(dict(zip(names, sums, strict=True)))
    return RankLoss(total * learner.ranks.world_size, named)


def map_samples(
    learner: Learner,
    samples: Sequence[TrainingSample],
    compute: Callable[[list[TrainingSample]], list[Value]],
) -> list[Value]:
    """``compute`` of each sample, without gradients; every rank gets all values."""
    if not samples:
        return []
    positions = {id(sample): position for position, sample in enumerate(samples)}
    computed: dict[int, Value] = {}
    with torch.no_grad():
        for batch in _rank_batches(learner, samples)[learner.ranks.rank]:
            pairs = zip(batch, compute(batch), strict=True)
            computed |= {positions[id(s)]: value for s, value in pairs if id(s) in positions}
    gathered = [item for part in learner.ranks.all_gather(computed) for item in part.items()]
    return [value for _, value in sorted(gathered, key=lambda item: item[0])]


def trace_logprobs(learner: Learner, traces: Sequence[TokenTrace]) -> list[tuple[float, ...]]:
    """The current policy's log-probs of the tokens under each trace's mask, which is not empty."""

    def compute(samples: list[TrainingSample]) -> list[tuple[float, ...]]:
        batch = collate(samples, learner.policy.device)
        logprobs_BT = batch_logprobs(learner, batch)
        return [tuple(row[mask].tolist()) for row, mask in zip(logprobs_BT, batch.mask_BT)]  # noqa: B905  # both are tensors of B rows

    return map_samples(learner, uniform_samples(traces), compute)


def batch_logprobs(learner: Learner, batch: MicroBatch) -> Tensor:
    """Log-probs at the training temperature, [B, T]; 0 outside the mask."""
    return learner.policy.logprobs(
        batch.ids_BT,
        batch.attention_BT,
        mask_BT=batch.mask_BT,
        temperature=learner.config.temperature,
        layout=batch.layout,
    ).logprobs_BT


def uniform_samples(traces: Sequence[TokenTrace]) -> list[TrainingSample]:
    """Traces as samples whose tokens have equal weights that sum to 1."""
    total = sum(sum(trace.mask) for trace in traces)
    return [TrainingSample(trace, (1.0,) * sum(trace.mask), 1 / total) for trace in traces]


def _checkpointed(
    partial_loss: Callable[[list[TrainingSample]], PartialLoss], samples: list[TrainingSample]
) -> PartialLoss:
    return PartialLoss(
        *cast(tuple[Any, Any], checkpoint(partial_loss, samples, use_reentrant=False))
    )


def _rank_batches(
    learner: Learner, samples: Sequence[TrainingSample]
) -> list[list[list[TrainingSample]]]:
    """The micro-batches of each rank, padded to equal counts with a sample of weight 0."""
    plans = plan_micro_batches(samples, learner.config, learner.ranks.world_size)
    padding = min(samples, key=lambda sample: sample.length)._replace(weight=0.0)
    count = max(map(len, plans))
    return [plan + [[padding]] * (count - len(plan)) for plan in plans]
