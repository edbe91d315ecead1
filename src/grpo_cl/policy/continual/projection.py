"""A-GEM: updates that, to first order, do not raise the loss on an episodic memory.

Chaudhry et al. 2019 (arXiv:1812.00420) project gradients. Adam then rescales each coordinate, and
its step may raise the memory's loss all the same, so here the step itself is projected.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_cl.policy.continual.passes import batch_logprobs
from grpo_cl.policy.continual.tensors import Tensors, inner_product, sum_over_ranks
from grpo_cl.policy.learner.batching import MicroBatch, sft_samples
from grpo_cl.policy.learner.learner import Learner
from grpo_cl.types import TokenTrace

SMALLEST = torch.finfo(torch.float32).tiny
"""Of a squared norm; one below it counts as zero."""


class Projection(NamedTuple):
    """A projected update, and how the original one relates to the reference gradient."""

    update: Tensors
    loss_increase: float
    """Inner product of the original update and the reference gradient: how much the update raises
    the memory's loss, to first order."""
    cosine: float
    """Cosine of the original update and the reference gradient; above 0 the loss rises."""

    @property
    def is_changed(self) -> bool:
        """Whether the projection changed the update."""
        return self.cosine > 0


class UpdateProjection:
    """Projects a learner's update against the gradient of a behaviour-cloning loss."""

    def __init__(self, learner: Learner, *, strength: float) -> None:
        self._learner = learner
        self._strength = strength
        self._weights_before: Tensors = {}

    @property
    def has_update(self) -> bool:
        """Whether the weights were updated since the last projection."""
        return bool(self._weights_before)

    def before_update(self) -> None:
        """Record the weights; several updates in a row are projected as one."""
        self._weights_before = self._weights_before or self._learner.weights()

    @torch.no_grad()
    def project_update(self, traces: Sequence[TokenTrace]) -> Projection:
        """Remove from the last update what raises the loss on ``traces``, equal on every rank."""
        before, weights = self._weights_before, self._learner.weights()
        self._weights_before = {}
        self._learner.load_weights(before)
        gradient = reference_gradient(self._learner, traces)
        update = {name: weight - before[name] for name, weight in weights.items()}
        projection = project(update, gradient, strength=self._strength)
        if projection.is_changed:
            weights = {name: before[name] + part for name, part in projection.update.items()}
        self._learner.load_weights(weights)
        return projection


def project(
    update: Mapping[str, Tensor], gradient: Mapping[str, Tensor], *, strength: float
) -> Projection:
    """The update minus ``strength`` of its component along ``gradient``, if that is positive."""
    product, squared_gradient = inner_product(update, gradient), inner_product(gradient, gradient)
    squared_update = inner_product(update, update)
    # Squares of small numbers underflow, to 0 or to a few bits, where the product does not.
    has_angle = min(squared_gradient, squared_update) >= SMALLEST
    cosine = product / math.sqrt(squared_gradient) / math.sqrt(squared_update) if has_angle else 0.0
    scale = strength * product / squared_gradient if cosine > 0 else 0.0
    projected = {name: part - scale * gradient[name] for name, part in update.items()}
    return Projection(projected, product, cosine)


def reference_gradient(learner: Learner, traces: Sequence[TokenTrace]) -> Tensors:
    """The gradient of the mean −log π over the policy's tokens of ``traces``.

    GRPO's own gradient is zero on a task that is always solved, and would not protect it.
    """
    samples = sft_samples(traces)
    with torch.enable_grad(), learner.update_scope(samples) as (batches, _):
        gradient = learner.gradients(_cloning_losses(learner, batches))
    sum_over_ranks(gradient, learner.ranks)
    return gradient


def _cloning_losses(learner: Learner, batches: Sequence[MicroBatch]) -> Iterator[Tensor]:
    for batch in batches:
        yield -(batch_logprobs(learner, batch) * batch.weights_B[:, None]).sum()
