"""The base of the algorithms with quadratic anchors, which differ in the importance of weights."""

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import NonNegativeFloat, PositiveInt, model_validator
from typing_extensions import TypeVar, override

from grpo_cl.algorithms.base import CLAlgorithm, TrainerView
from grpo_cl.config import ConfigRecord, Share
from grpo_cl.policy.continual.anchors import Form, QuadraticAnchor, Schedule
from grpo_cl.policy.continual.importance import normalize_importance
from grpo_cl.policy.continual.tensors import (
    Tensors,
    flatten_groups,
    group_tensors,
    load_tensors,
    save_tensors,
)
from grpo_cl.policy.learner.learner import Learner
from grpo_cl.types import TokenTrace

_log = logging.getLogger(__name__)


class PenaltyOptions(ConfigRecord):
    """Strength and form of the penalty."""

    strength: NonNegativeFloat = 0.01
    """``proximal``: the rate per update at which a weight of mean importance returns to its anchor.
    ``loss``: the coefficient λ of the penalty."""
    form: Form = "proximal"
    """A proximal step after the optimizer's step, or a gradient added before it."""

    def make_anchor(self, learner: Learner) -> QuadraticAnchor:
        """An anchor that replaces the previous one at each stage."""
        strength, form = self.strength, self.form
        return QuadraticAnchor(learner, strength=strength, form=form, schedule="online", decay=0.0)


class AnchorOptions(PenaltyOptions):
    """Strength and form of the penalty, and how the anchors of several stages are combined."""

    schedule: Schedule = "merged"
    """How the anchors of several stages are combined."""
    decay: Share = 1.0
    """Factor on older importances after a stage, with the schedule ``online``."""

    @model_validator(mode="after")
    def _decay_needs_online(self) -> Self:
        if self.decay != 1 and self.schedule != "online":
            raise ValueError("decay needs schedule=online; set that or leave decay out")
        return self

    @override
    def make_anchor(self, learner: Learner) -> QuadraticAnchor:
        """An anchor for several stages."""
        return QuadraticAnchor(
            learner,
            strength=self.strength,
            form=self.form,
            schedule=self.schedule,
            decay=self.decay,
        )


PenaltyOptionsT = TypeVar("PenaltyOptionsT", bound=PenaltyOptions)


class AnchoredCL(CLAlgorithm[PenaltyOptionsT]):
    """Anchors the weights at the end of each stage in proportion to their importance."""

    stores = "weights"
    anchor: QuadraticAnchor

    @abstractmethod
    def importance(self, domain: str) -> Tensors:
        """The importance of each weight for ``domain``, on any scale."""

    @override
    def bind(self, trainer: TrainerView) -> None:
        super().bind(trainer)
        self.anchor = self.options.make_anchor(trainer.policy.learner)
        if trainer.config.lora.r and self.anchor.is_active:
            _log.warning(
                "the anchors penalize the two LoRA factors, not their product; the same policy "
                "has other factors at other distances (docs/algorithms.md)"
            )

    @override
    def transform_gradients(self, parameters: Sequence[tuple[str, Any]]) -> None:
        self.anchor.add_penalty_gradient(parameters)

    @override
    def post_step_hook(self, trainer: TrainerView, domain: str) -> None:
        self.anchor.apply_proximal_step()

    @override
    def post_task_hook(self, trainer: TrainerView, domain: str) -> None:
        if self.anchor.is_active:
            self.anchor.add_anchor(normalize_importance(self.importance(domain)))

    @override
    def telemetry(self) -> Mapping[str, float]:
        return self.anchor.metrics

    @override
    def save_state(self, folder: Path) -> None:
        tensors = flatten_groups(self.tensor_groups())
        save_tensors(folder, tensors, is_main=self.trainer.policy.is_main)

    @override
    def load_state(self, folder: Path) -> None:
        weights = self.trainer.policy.learner.weights()
        self.load_tensor_groups(group_tensors(load_tensors(folder), like=weights))

    def tensor_groups(self) -> dict[str, Tensors]:
        """The tensors that a resumed run needs, by group."""
        return self.anchor.tensor_groups()

    def load_tensor_groups(self, groups: Mapping[str, Tensors]) -> None:
        """Restore ``tensor_groups``."""
        self.anchor.load_tensor_groups(groups)


class SampledOptions(AnchorOptions):
    """The penalty, and the number of episodes from which the importance is estimated."""

    samples: PositiveInt = 64
    """Latest episodes of a domain from which the importance is estimated."""


class SampledAnchorCL(AnchoredCL[SampledOptions]):
    """Anchors whose importance is estimated on the policy's own samples of the domain."""

    options_type = SampledOptions
    shares_first_stage = True
    cost = "one pass per sample at the end of a domain"

    @abstractmethod
    def estimate(self, learner: Learner, traces: Sequence[TokenTrace]) -> Tensors:
        """The importance of each weight for the log-probs of ``traces``."""

    @override
    def importance(self, domain: str) -> Tensors:
        buffer, count = self.trainer.trajectory_buffer, self.options.samples
        # The latest episodes are approximately samples of the current policy.
        records = buffer.sample(domain, count, "recent")
        traces = [record.trajectory.tokens for record in records if record.trajectory.tokens]
        return self.estimate(self.trainer.policy.learner, traces)
