"""Updates that, to first order, do not raise the loss on a memory.

A-GEM (Chaudhry et al. 2019, arXiv:1812.00420) projects gradients. Adam then rescales each
coordinate, and the step may raise the memory's loss all the same, so here it is the step that is
projected. Shapes: B sequences, T token positions.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_cl.policy.batching import MicroBatch, imitation_samples
from grpo_cl.policy.continual.passes import scored
from grpo_cl.policy.continual.tensors import Tensors, inner, sum_over_ranks
from grpo_cl.policy.learner import Learner
from grpo_cl.types import TokenTrace


class Projection(NamedTuple):
    """An update and what it was held against."""

    update: Tensors
    rise: float
    """How much the update as it came raises the memory's loss, to first order."""
    cosine: float
    """Between the update as it came and the memory's gradient; above 0 it raises the loss."""

    @property
    def is_changed(self) -> bool:
        """Whether something had to be taken away."""
        return self.rise > 0


class UpdateProjection:
    """Corrects a learner's update against a memory of trajectories to be cloned."""

    def __init__(self, learner: Learner, *, strength: float) -> None:
        self._learner = learner
        self._strength = strength
        self._before: Tensors = {}

    @property
    def has_update(self) -> bool:
        """Whether the weights were updated since the last correction."""
        return bool(self._before)

    def keep(self) -> None:
        """Before an update: remember where it starts; several in a row are one."""
        self._before = self._before or self._learner.weights()

    @torch.no_grad()
    def correct(self, traces: Sequence[TokenTrace]) -> Projection:
        """After it: take away what raises the loss on ``traces``, the same on every rank."""
        before, now = self._before, self._learner.weights()
        self._before = {}
        self._learner.load_weights(before)
        direction = cloning_gradient(self._learner, traces)
        update = {name: weight - before[name] for name, weight in now.items()}
        found = project(update, direction, strength=self._strength)
        if found.is_changed:
            now = {name: before[name] + part for name, part in found.update.items()}
        self._learner.load_weights(now)
        return found


def project(
    update: Mapping[str, Tensor], direction: Mapping[str, Tensor], *, strength: float
) -> Projection:
    """The update without ``strength`` of its part along a gradient, if it goes up that gradient."""
    rise, steepness = inner(update, direction), inner(direction, direction)
    size = inner(update, update)
    cosine = rise / (steepness * size) ** 0.5 if steepness and size else 0.0
    share = strength * rise / steepness if rise > 0 else 0.0
    kept = {name: part - share * direction[name] for name, part in update.items()}
    return Projection(kept, rise, cosine)


def cloning_gradient(learner: Learner, traces: Sequence[TokenTrace]) -> Tensors:
    """The gradient of the mean −log π over the policy's tokens of ``traces``.

    That of GRPO would be zero on a task that is always solved, and protect it from nothing.
    """
    samples = imitation_samples(traces)
    with torch.enable_grad(), learner.learning(samples) as (batches, _):
        gradient = learner.gradients(_cloning_losses(learner, batches))
    sum_over_ranks(gradient, learner.ranks)
    return gradient


def _cloning_losses(learner: Learner, batches: Sequence[MicroBatch]) -> Iterator[Tensor]:
    for batch in batches:
        yield -(scored(learner, batch) * batch.weights_B[:, None]).sum()
