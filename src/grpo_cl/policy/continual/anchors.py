"""Quadratic anchors: springs that hold each weight, by its importance, where it was learned.

The penalty on the weights θ is λ/2 · Σ_k Σ_j F_kj (θ_j − θ*_kj)², a sum over the held stages k and
over all parameters j, with importances of mean 1. EWC, SI, MAS and the L2 penalties differ only in
F (docs/algorithms.md).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from grpo_cl.policy.continual.tensors import Tensors, inner
from grpo_cl.policy.learner import Learner
from grpo_cl.policy.reference import whole

Form = Literal["loss", "proximal"]
"""``loss`` adds the penalty's gradient to the task's, before clipping and Adam; ``proximal`` pulls
the weights back after the optimizer's step, which is stable at any strength."""
Schedule = Literal["separate", "merged", "online"]
"""``separate`` keeps importances and weights of every stage; ``merged`` keeps their sum and their
weighted mean, which pull exactly alike; ``online`` lets older importances decay and holds all to
the newest weights."""

SILENT = {"cl/penalty": 0.0, "cl/penalty_ratio": 0.0}
"""What a step shows in which no weight was held."""


class Term(NamedTuple):
    """One spring per parameter."""

    importance: Tensors
    anchor: Tensors

    def merged(self, newer: "Term") -> "Term":
        """The one term whose penalty differs from the two terms' by a constant."""
        total = {name: given + newer.importance[name] for name, given in self.importance.items()}
        anchor = {
            name: torch.where(
                total[name] > 0,
                # Exact where both anchors agree, which a quotient of weighted sums is not.
                old + (newer.anchor[name] - old) * newer.importance[name] / total[name],
                newer.anchor[name],
            )
            for name, old in self.anchor.items()
        }
        return Term(total, anchor)

    def decayed(self, newer: "Term", decay: float) -> "Term":
        """The newer weights with its importance on top of what is left of the older."""
        importance = {
            name: decay * given + newer.importance[name] for name, given in self.importance.items()
        }
        return Term(importance, newer.anchor)


class QuadraticAnchor:
    """Holds a learner's weights where they were when ``hold`` was called."""

    def __init__(
        self,
        learner: Learner,
        *,
        strength: float,
        form: Form,
        schedule: Schedule,
        decay: float = 1.0,
    ) -> None:
        self._learner = learner
        self._strength = strength
        self._form: Form = form
        self._schedule: Schedule = schedule
        self._decay = decay
        self.terms: list[Term] = []
        self._pending = 0.0  # learning rates of the updates since the last pull, in base rates
        self._before: Tensors = {}
        self._measured: dict[str, float] = {}
        self.numbers = dict(SILENT)

    @property
    def is_active(self) -> bool:
        """Whether there is any strength to hold with."""
        return self._strength > 0

    @property
    def coefficient(self) -> float:
        """λ; a proximal strength is one per step at the base learning rate, so λ is per rate."""
        base = self._learner.config.learning_rate if self._form == "proximal" else 1.0
        return self._strength / base

    def hold(self, importance: Tensors) -> None:
        """Hold today's weights too, each as firmly as it is important."""
        new = Term(importance, self._learner.weights())
        if self._schedule == "separate" or not self.terms:
            self.terms.append(new)
        elif self._schedule == "merged":
            self.terms = [self.terms[0].merged(new)]
        else:
            self.terms = [self.terms[0].decayed(new, self._decay)]

    def penalty(self, weights: Mapping[str, Tensor]) -> float:
        """What ``weights`` cost."""
        energies = [
            whole((importance * (weights[name] - anchor[name]).square()).sum())
            for importances, anchor in self.terms
            for name, importance in importances.items()
        ]
        return self.coefficient / 2 * float(torch.stack(energies).double().sum())

    def gradient(self, name: str, weight: Tensor) -> Tensor:
        """Of the penalty with respect to the parameter of this name."""
        slope = torch.zeros_like(weight)
        for term in self.terms:
            slope += term.importance[name] * (weight - term.anchor[name])
        return slope.mul_(self.coefficient)

    @torch.no_grad()
    def oppose(self, parameters: Sequence[tuple[str, Parameter]]) -> None:
        """Before an update: measure the penalty; in the loss form add its gradient to the task's.

        The gradient of a quadratic is known without a backward pass, and here it is that of the
        optimizer's float32 weights: of bfloat16 ones their rounding would be most of it.
        """
        if not self.terms:
            return
        learner = self._learner
        self._measured["cl/penalty"] = self.penalty(dict(parameters))
        if self._form == "proximal":
            self._before = self._before or learner.weights()
            self._pending += learner.learning_rate / learner.config.learning_rate
            return
        task = {name: given.grad for name, given in parameters if given.grad is not None}
        own = {name: self.gradient(name, given) for name, given in parameters if name in task}
        self._measured["cl/penalty_ratio"] = _ratio(own, task)
        for name, gradient in own.items():
            task[name].add_(gradient)

    @torch.no_grad()
    def settle(self) -> None:
        """After the updates of a step: in the proximal form move the weights to the anchors."""
        if self._pending:
            self._pull()
        self.numbers, self._measured = {**SILENT, **self._measured}, {}

    def groups(self) -> dict[str, Tensors]:
        """Everything that ``load`` needs."""
        return {
            f"{kind}_{number}": part
            for number, term in enumerate(self.terms)
            for kind, part in term._asdict().items()
        }

    def load(self, groups: Mapping[str, Tensors]) -> None:
        """Hold what the anchor of ``groups`` held."""
        count = sum(name.startswith("anchor_") for name in groups)
        self.terms = [
            Term(groups[f"importance_{number}"], groups[f"anchor_{number}"])
            for number in range(count)
        ]

    def _pull(self) -> None:
        """The implicit step on the penalty: (θ + ηλ Σ_k F_k θ*_k) / (1 + ηλ Σ_k F_k)."""
        rate = self._strength * self._pending
        now = self._learner.weights()
        task = {name: weight - self._before[name] for name, weight in now.items()}
        pulls = {name: self._pulled(name, weight, rate) for name, weight in now.items()}
        self._measured["cl/penalty_ratio"] = _ratio(pulls, task)
        self._learner.load_weights({name: now[name].add_(pull) for name, pull in pulls.items()})
        self._pending, self._before = 0.0, {}

    def _pulled(self, name: str, weight: Tensor, rate: float) -> Tensor:
        """How far the springs move a weight; nowhere if it is where they hold it."""
        force, stiffness = torch.zeros_like(weight), torch.ones_like(weight)
        for term in self.terms:
            share = term.importance[name] * rate
            force += share * (term.anchor[name] - weight)
            stiffness += share
        return force / stiffness


def _ratio(own: Mapping[str, Tensor], task: Mapping[str, Tensor]) -> float:
    size = inner(task, task)
    return math.sqrt(inner(own, own) / size) if size else 0.0
