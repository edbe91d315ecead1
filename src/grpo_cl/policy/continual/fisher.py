"""How much each weight matters to what a policy does, measured one trajectory at a time.

Gradients are squared or made absolute before they are averaged. The square of an average over
trajectories would be something else: the gradient of log π averages to zero over a policy's own
samples. Shapes: B sequences, T token positions.
"""

import logging
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from grpo_cl.policy.batching import Sample, collate, imitation_samples
from grpo_cl.policy.continual.passes import scored
from grpo_cl.policy.continual.tensors import Tensors, sum_over_ranks
from grpo_cl.policy.learner import Learner
from grpo_cl.policy.reference import whole
from grpo_cl.types import TokenTrace

_log = logging.getLogger(__name__)

Score = Callable[[Tensor], Tensor]


def fisher(learner: Learner, traces: Sequence[TokenTrace]) -> Tensors:
    """The diagonal of the Fisher information of a trajectory, E[(∂ Σ_t log π(y_t) / ∂θ)²].

    It is that only if the traces are samples of today's policy; rewards do not enter. Kirkpatrick
    et al. 2017, arXiv:1612.00796.
    """
    return _mean(learner, traces, score=torch.sum, size=torch.square)


def sensitivity(learner: Learner, traces: Sequence[TokenTrace]) -> Tensors:
    """Memory-aware synapses: E|∂ Σ_t (log π(y_t))² / ∂θ|.

    Aljundi et al. 2018, arXiv:1711.09601, with the log-probs of the tokens that were written in
    place of all outputs.
    """
    return _mean(learner, traces, score=_squares, size=torch.abs)


def uniform(learner: Learner) -> Tensors:
    """Every weight matters the same."""
    return {name: torch.ones_like(weight) for name, weight in learner.weights().items()}


def normalised(importance: Tensors) -> Tensors:
    """The importances scaled to a mean of 1 over all parameters, so that strengths compare."""
    total = sum(float(whole(given.sum())) for given in importance.values())
    count = sum(given.numel() for given in importance.values())
    if not total:
        _log.warning("no weight was found important; nothing holds this stage")
        return importance
    return {name: given * (count / total) for name, given in importance.items()}


def _squares(logprobs_BT: Tensor) -> Tensor:
    return logprobs_BT.square().sum()


def _mean(
    learner: Learner,
    traces: Sequence[TokenTrace],
    *,
    score: Score,
    size: Callable[[Tensor], Tensor],
) -> Tensors:
    """The mean over traces of the size of the gradient of each trace's score."""
    ranks = learner.ranks
    totals = {name: torch.zeros_like(weight) for name, weight in learner.weights().items()}
    # The passes of a sharded policy are made by all ranks together, and their gradients summed.
    is_sharded = any(isinstance(total, DTensor) for total in totals.values())
    samples = imitation_samples(traces)
    own = samples if is_sharded else samples[ranks.rank :: ranks.world_size]
    parts = ranks.world_size if is_sharded else 1
    for sample in own:
        for name, gradient in learner.gradients(_scores(learner, sample, score)).items():
            totals[name] += size(gradient / parts)
    sum_over_ranks(totals, ranks)
    return {name: total / max(1, len(samples)) for name, total in totals.items()}


def _scores(learner: Learner, sample: Sample, score: Score) -> Iterator[Tensor]:
    # As an iterator, so that the learner makes the pass as it makes those of an update.
    yield score(scored(learner, collate([sample], learner.policy.device)))
