"""Quadratic penalties that anchor each weight, by its importance, at an earlier value.

The penalty on the weights θ is λ/2 · Σ_k Σ_j F_kj (θ_j − θ*_kj)², a sum over the anchored stages k
and over all parameters j, with importances F of mean 1. EWC, SI, MAS and the L2 penalties differ
only in F (docs/algorithms.md).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from grpo_cl.policy.continual.tensors import Tensors, inner_product
from grpo_cl.policy.learner.learner import Learner
from grpo_cl.policy.model.weights import full_tensor

Form = Literal["loss", "proximal"]
"""``loss`` adds the penalty's gradient to the task's, before clipping and Adam; ``proximal`` makes
a proximal step after the optimizer's step, which is stable at any strength."""
Schedule = Literal["separate", "merged", "online"]
"""``separate`` keeps importances and weights of every stage; ``merged`` keeps their sum and their
weighted mean, which have the same gradient; ``online`` lets older importances decay and anchors at
the newest weights."""

NO_PENALTY = {"cl/penalty": 0.0, "cl/penalty_ratio": 0.0}
"""The metrics of a step without an anchor."""


class AnchorTerm(NamedTuple):
    """One quadratic term per parameter."""

    importance: Tensors
    anchor: Tensors

    def merged(self, newer: "AnchorTerm") -> "AnchorTerm":
        """The single term whose penalty differs from the sum of both by a constant."""
        total = {name: old + newer.importance[name] for name, old in self.importance.items()}
        anchor = {
            name: torch.where(
                total[name] > 0,
                # Exact where both anchors agree, which a quotient of weighted sums is not.
                old + (newer.anchor[name] - old) * newer.importance[name] / total[name],
                newer.anchor[name],
            )
            for name, old in self.anchor.items()
        }
        return AnchorTerm(total, anchor)

    def decayed(self, newer: "AnchorTerm", decay: float) -> "AnchorTerm":
        """The newer anchor, with the newer importance plus the decayed older one."""
        importance = {
            name: decay * old + newer.importance[name] for name, old in self.importance.items()
        }
        return AnchorTerm(importance, newer.anchor)


class QuadraticAnchor:
    """Penalizes the distance of a learner's weights from those at each ``add_anchor``."""

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
        self.terms: list[AnchorTerm] = []
        # Sum of the learning rates since the last proximal step, in units of the base rate.
        self._pending_rate = 0.0
        self._weights_before: Tensors = {}
        self._step_metrics: dict[str, float] = {}
        self.metrics = dict(NO_PENALTY)

    @property
    def is_active(self) -> bool:
        """Whether the strength is above 0."""
        return self._strength > 0

    @property
    def coefficient(self) -> float:
        """λ; a proximal strength is per step at the base learning rate, so λ is per unit rate."""
        base = self._learner.config.learning_rate if self._form == "proximal" else 1.0
        return self._strength / base

    def add_anchor(self, importance: Tensors) -> None:
        """Anchor the current weights with this importance, in addition to earlier anchors."""
        new = AnchorTerm(importance, self._learner.weights())
        if self._schedule == "separate" or not self.terms:
            self.terms.append(new)
        elif self._schedule == "merged":
            self.terms = [self.terms[0].merged(new)]
        else:
            self.terms = [self.terms[0].decayed(new, self._decay)]

    def penalty(self, weights: Mapping[str, Tensor]) -> float:
        """The penalty on ``weights``."""
        energies = [
            full_tensor((importance * (weights[name] - anchor[name]).square()).sum())
            for importances, anchor in self.terms
            for name, importance in importances.items()
        ]
        return self.coefficient / 2 * float(torch.stack(energies).double().sum())

    def gradient(self, name: str, weight: Tensor) -> Tensor:
        """The gradient of the penalty with respect to one parameter."""
        gradient = torch.zeros_like(weight)
        for term in self.terms:
            gradient += term.importance[name] * (weight - term.anchor[name])
        return gradient.mul_(self.coefficient)

    @torch.no_grad()
    def add_penalty_gradient(self, parameters: Sequence[tuple[str, Parameter]]) -> None:
        """Before an update: measure the penalty; in the loss form add its gradient to the task's.

        The gradient of a quadratic needs no backward pass. It is computed from the optimizer's
        float32 weights: bfloat16 weights differ from the anchor mostly by their rounding.
        """
        if not self.terms:
            return
        learner = self._learner
        self._step_metrics["cl/penalty"] = self.penalty(dict(parameters))
        if self._form == "proximal":
            self._weights_before = self._weights_before or learner.weights()
            self._pending_rate += learner.learning_rate / learner.config.learning_rate
            return
        task = {name: weight.grad for name, weight in parameters if weight.grad is not None}
        added = {name: self.gradient(name, weight) for name, weight in parameters if name in task}
        self._step_metrics["cl/penalty_ratio"] = _norm_ratio(added, task)
        for name, gradient in added.items():
            task[name].add_(gradient)

    @torch.no_grad()
    def apply_proximal_step(self) -> None:
        """After the updates of a step: in the proximal form move the weights to the anchors."""
        if self._pending_rate:
            self._move_weights()
        self.metrics, self._step_metrics = {**NO_PENALTY, **self._step_metrics}, {}

    def tensor_groups(self) -> dict[str, Tensors]:
        """The state that ``load_tensor_groups`` restores."""
        return {
            f"{kind}_{number}": tensors
            for number, term in enumerate(self.terms)
            for kind, tensors in term._asdict().items()
        }

    def load_tensor_groups(self, groups: Mapping[str, Tensors]) -> None:
        """Restore the terms of ``tensor_groups``; other groups are ignored."""
        count = sum(name.startswith("anchor_") for name in groups)
        self.terms = [
            AnchorTerm(groups[f"importance_{number}"], groups[f"anchor_{number}"])
            for number in range(count)
        ]

    def _move_weights(self) -> None:
        """The implicit step on the penalty: (θ + ηλ Σ_k F_k θ*_k) / (1 + ηλ Σ_k F_k)."""
        rate = self._strength * self._pending_rate
        weights = self._learner.weights()
        updates = {name: weight - self._weights_before[name] for name, weight in weights.items()}
        steps = {name: self._proximal_step(name, w, rate) for name, w in weights.items()}
        self._step_metrics["cl/penalty_ratio"] = _norm_ratio(steps, updates)
        self._learner.load_weights({name: weights[name].add_(step) for name, step in steps.items()})
        self._pending_rate, self._weights_before = 0.0, {}

    def _proximal_step(self, name: str, weight: Tensor, rate: float) -> Tensor:
        """The change of a weight by the implicit step; exactly 0 at its anchor."""
        force, stiffness = torch.zeros_like(weight), torch.ones_like(weight)
        for term in self.terms:
            scaled_importance = term.importance[name] * rate
            force += scaled_importance * (term.anchor[name] - weight)
            stiffness += scaled_importance
        return force / stiffness


def _norm_ratio(penalty: Mapping[str, Tensor], task: Mapping[str, Tensor]) -> float:
    squared_norm = inner_product(task, task)
    return math.sqrt(inner_product(penalty, penalty) / squared_norm) if squared_norm else 0.0
