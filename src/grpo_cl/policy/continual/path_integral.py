"""Synaptic intelligence: the path integral of the gradient over a stage.

Zenke et al. 2017, arXiv:1703.04200.
"""

from collections.abc import Mapping, Sequence

import torch
from torch.nn import Parameter

from grpo_cl.policy.continual.tensors import Tensors, inner_product
from grpo_cl.policy.learner.learner import Learner

SMALLEST = torch.finfo(torch.float32).tiny
"""Keeps the quotient finite for weights that did not move."""


class PathIntegral:
    """Accumulates −gradient · weight change per parameter from ``start_stage`` on."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self.start: Tensors = {}
        self.work: Tensors = {}
        self._gradients: Tensors = {}
        self._weights_before: Tensors = {}

    def start_stage(self) -> None:
        """Set the integral to zero at the current weights."""
        self.start = self._learner.weights()
        self.work = {name: torch.zeros_like(weight) for name, weight in self.start.items()}

    def before_update(self, parameters: Sequence[tuple[str, Parameter]]) -> None:
        """Record weights and gradients, which must be those of the task loss alone."""
        self.after_update()
        self._weights_before = self._learner.weights()
        self._gradients = {
            name: parameter.grad.clone()
            for name, parameter in parameters
            if parameter.grad is not None
        }

    def after_update(self) -> None:
        """Add the update since ``before_update``; call it before anything else moves weights."""
        if self._gradients:
            weights = self._learner.weights()
            for name, gradient in self._gradients.items():
                self.work[name] -= gradient * (weights[name] - self._weights_before[name])
        self._gradients, self._weights_before = {}, {}

    def importance(self, *, damping: float) -> Tensors:
        """The path integral per squared weight change of the stage, 0 where the loss rose.

        ``damping`` is in units of the mean squared change, so that it means the same at every
        learning rate; without it the importance of weights that hardly moved would be largest.
        """
        weights = self._learner.weights()
        change = {name: weight - self.start[name] for name, weight in weights.items()}
        count = sum(weight.numel() for weight in weights.values())
        floor = max(damping * inner_product(change, change) / count, SMALLEST)
        return {
            name: work.clamp(min=0) / (change[name].square() + floor)
            for name, work in self.work.items()
        }

    def tensor_groups(self) -> dict[str, Tensors]:
        """The state that ``load_tensor_groups`` restores."""
        return {"start": self.start, "work": self.work}

    def load_tensor_groups(self, groups: Mapping[str, Tensors]) -> None:
        """Restore the state of ``tensor_groups``; other groups are ignored."""
        self.start, self.work = groups.get("start", {}), groups.get("work", {})
