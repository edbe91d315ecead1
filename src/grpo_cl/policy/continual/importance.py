"""Importance of each weight for a policy's outputs, estimated one trajectory at a time.

Gradients are squared, or their absolute values taken, before they are averaged. The square of the
mean gradient is another quantity: the gradient of log π has mean zero over samples of π.
Shapes: B sequences, T token positions.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from grpo_cl.errors import TrainingError
from grpo_cl.policy.continual.passes import batch_logprobs
from grpo_cl.policy.continual.tensors import Tensors, sum_over_ranks
from grpo_cl.policy.learner.batching import TrainingSample, collate, sft_samples
from grpo_cl.policy.learner.learner import Learner
from grpo_cl.policy.model.weights import full_tensor
from grpo_cl.types import TokenTrace

_log = logging.getLogger(__name__)

Score = Callable[[Tensor], Tensor]


def fisher_diagonal(learner: Learner, traces: Sequence[TokenTrace]) -> Tensors:
    """The diagonal of the Fisher information of a trajectory, E[(∂ Σ_t log π(y_t) / ∂θ)²].

    ``traces`` must be samples of the current policy; rewards do not enter. Kirkpatrick et al.
    2017, arXiv:1612.00796.
    """
    return _mean_gradient_size(learner, traces, score=torch.sum, size=torch.square)


def sensitivity(learner: Learner, traces: Sequence[TokenTrace]) -> Tensors:
    """Importance of memory-aware synapses: E|∂ Σ_t (log π(y_t))² / ∂θ|.

    Aljundi et al. 2018, arXiv:1711.09601, with the log-probs of the sampled tokens in place of all
    outputs.
    """
    return _mean_gradient_size(learner, traces, score=_sum_of_squares, size=torch.abs)


def uniform_importance(learner: Learner) -> Tensors:
    """Importance 1 for every weight."""
    return {name: torch.ones_like(weight) for name, weight in learner.weights().items()}


def normalize_importance(importance: Tensors) -> Tensors:
    """Importances scaled to a mean of 1 over all parameters, so that strengths are comparable."""
    totals = {name: float(full_tensor(t.sum())) for name, t in importance.items()}
    infinite = [name for name, part in totals.items() if not math.isfinite(part)]
    if infinite:
        raise TrainingError(
            f"the importance of {infinite[0]} is not finite, so it cannot anchor a weight; the "
            "gradients overflow: set model_dtype to bfloat16 or float32, or lower learning_rate"
        )
    total, count = sum(totals.values()), sum(tensor.numel() for tensor in importance.values())
    if total < count * torch.finfo(torch.float32).tiny:  # the quotient would overflow
        _log.warning("all importances are 0; no weight of this stage is anchored")
        return {name: torch.zeros_like(tensor) for name, tensor in importance.items()}
    return {name: tensor * (count / total) for name, tensor in importance.items()}


def _sum_of_squares(logprobs_BT: Tensor) -> Tensor:
    return logprobs_BT.square().sum()


def _mean_gradient_size(
    learner: Learner,
    traces: Sequence[TokenTrace],
    *,
    score: Score,
    size: Callable[[Tensor], Tensor],
) -> Tensors:
    """The mean over traces of ``size`` of the gradient of each trace's ``score``."""
    ranks = learner.ranks
    totals = {name: torch.zeros_like(weight) for name, weight in learner.weights().items()}
    # All ranks make the passes of a sharded policy together, and FSDP sums their gradients.
    is_sharded = any(isinstance(total, DTensor) for total in totals.values())
    samples = sft_samples(traces)
    own_samples = samples if is_sharded else samples[ranks.rank :: ranks.world_size]
    num_equal_passes = ranks.world_size if is_sharded else 1
    for sample in own_samples:
        for name, gradient in learner.gradients(_scores(learner, sample, score)).items():
            totals[name] += size(gradient / num_equal_passes)
    sum_over_ranks(totals, ranks)
    return {name: total / max(1, len(samples)) for name, total in totals.items()}


def _scores(learner: Learner, sample: TrainingSample, score: Score) -> Iterator[Tensor]:
    # A generator, so that the learner makes the pass in the mode that its gradients need.
    yield score(batch_logprobs(learner, collate([sample], learner.policy.device)))
