"""What each weight contributed to a stage: the work done along its path.

Synaptic intelligence, Zenke et al. 2017, arXiv:1703.04200.
"""

from collections.abc import Mapping, Sequence

import torch
from torch.nn import Parameter

from grpo_cl.policy.continual.tensors import Tensors, inner
from grpo_cl.policy.learner import Learner


class WorkPath:
    """Adds up −gradient · movement of each weight since ``begin``."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self.start: Tensors = {}
        self.work: Tensors = {}
        self._gradients: Tensors = {}
        self._before: Tensors = {}

    def begin(self) -> None:
        """Start a stage."""
        self.start = self._learner.weights()
        self.work = {name: torch.zeros_like(weight) for name, weight in self.start.items()}

    def depart(self, parameters: Sequence[tuple[str, Parameter]]) -> None:
        """Before an update, with the gradients of the task alone."""
        self.arrive()
        self._before = self._learner.weights()
        self._gradients = {
            name: given.grad.clone() for name, given in parameters if given.grad is not None
        }

    def arrive(self) -> None:
        """After an update, before anything else moves the weights."""
        if self._gradients:
            now = self._learner.weights()
            for name, gradient in self._gradients.items():
                self.work[name] -= gradient * (now[name] - self._before[name])
        self._gradients, self._before = {}, {}

    def importance(self, *, damping: float) -> Tensors:
        """Work per squared movement of the stage, where it lowered the loss.

        ``damping`` is in units of the mean squared movement, so that it means the same at every
        learning rate; without it a weight that hardly moved would seem the most important.
        """
        now = self._learner.weights()
        moved = {name: weight - self.start[name] for name, weight in now.items()}
        count = sum(weight.numel() for weight in now.values())
        floor = max(damping * inner(moved, moved) / count, torch.finfo(torch.float32).tiny)
        return {
            name: work.clamp(min=0) / (moved[name].square() + floor)
            for name, work in self.work.items()
        }

    def groups(self) -> dict[str, Tensors]:
        """Everything that ``load`` needs."""
        return {"start": self.start, "work": self.work}

    def load(self, groups: Mapping[str, Tensors]) -> None:
        """Go on along the path of ``groups``."""
        self.start, self.work = groups.get("start", {}), groups.get("work", {})
