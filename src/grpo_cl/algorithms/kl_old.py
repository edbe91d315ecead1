"""KL penalty towards the old policy, the one at the end of an earlier stage."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import NonNegativeFloat, model_validator
from typing_extensions import override

from grpo_cl.algorithms.base import TrainerView
from grpo_cl.algorithms.episodic import EpisodicCL, MemoryOptions
from grpo_cl.policy.continual.distillation import (
    ScoredTrace,
    memory_samples,
    on_policy_samples,
    record_logprobs,
    token_kl_loss,
)
from grpo_cl.policy.continual.episodic_memory import MemoryEpisode
from grpo_cl.policy.continual.passes import trace_logprobs
from grpo_cl.policy.continual.tensors import load_snapshot, save_snapshot
from grpo_cl.policy.learner.batching import TrainingSample
from grpo_cl.policy.model.weights import ModuleWeights, WeightSnapshot
from grpo_cl.runs.reservoir import Experience
from grpo_cl.types import TokenTrace, TrajectoryGroup


class KLOldOptions(MemoryOptions):
    """Weight, estimator and states of the KL penalty."""

    strength: NonNegativeFloat = 1.0
    """Weight of the divergence, a mean per token."""
    states: Literal["old", "current"] = "old"
    """``old``: stored episodes of earlier domains. ``current``: the episodes of the current step,
    with the policy at the end of the previous stage as teacher (learning without forgetting)."""
    estimator: Literal["k2", "k3", "nll"] = "k3"
    """Of the divergence; docs/algorithms.md lists the gradient of each."""

    @model_validator(mode="after")
    def _estimator_has_a_gradient(self) -> Self:
        if self.states == "current" and self.estimator == "nll":
            raise ValueError("on current states the mean gradient of nll is 0; use k2 or k3")
        return self


class KLOldCL(EpisodicCL[KLOldOptions]):
    """Stores episodes with their log-probs at the end of their stage, as targets of a KL loss."""

    options_type = KLOldOptions
    rng_label = "kl_old"
    cost = "a pass over `batch` episodes per update; on current states a pass without gradient too"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._old_policy: WeightSnapshot | None = None
        self._samples: list[TrainingSample] = []

    @property
    def _uses_memory(self) -> bool:
        return self.options.states == "old"

    @property
    @override
    def is_active(self) -> bool:
        return self.options.strength > 0

    @override
    def augment_rollouts(
        self, groups: Sequence[TrajectoryGroup], current_domain: str
    ) -> Sequence[TrajectoryGroup]:
        self.metrics = {}
        if self._uses_memory:
            self._samples = memory_samples(self.draw_episodes(current_domain))
        elif self._old_policy is not None:
            self._samples = self._score_by_old_policy(groups, self._old_policy)
        return groups

    @override
    def auxiliary_loss(self, policy: Any) -> Any:
        if not self._samples:
            return None
        learner, estimator = self.trainer.policy.learner, self.options.estimator
        result = token_kl_loss(learner, self._samples, estimator, is_old=self._uses_memory)
        self.metrics = {
            "cl/kl_old": result.sums["kl"] / result.sums["tokens"],
            "cl/kl_old_tokens": result.sums["tokens"],
            "cl/kl_old_kept": float(len(self.memory)),
        }
        return self.options.strength * result.loss

    @override
    def post_task_hook(self, trainer: TrainerView, domain: str) -> None:
        if self._uses_memory:
            super().post_task_hook(trainer, domain)
        elif self.is_active:
            self._old_policy = WeightSnapshot.take(ModuleWeights(trainer.policy.model.module))

    @override
    def record(self, stored: Sequence[tuple[Experience, TokenTrace]]) -> list[MemoryEpisode]:
        return record_logprobs(self.trainer.policy.learner, stored)

    @override
    def save_state(self, folder: Path) -> None:
        if self._uses_memory:
            super().save_state(folder)
        else:
            save_snapshot(folder, self._old_policy, is_main=self.trainer.policy.is_main)

    @override
    def load_state(self, folder: Path) -> None:
        if self._uses_memory:
            super().load_state(folder)
        else:
            self._old_policy = load_snapshot(folder)

    def _score_by_old_policy(
        self, groups: Sequence[TrajectoryGroup], old_policy: WeightSnapshot
    ) -> list[TrainingSample]:
        learner = self.trainer.policy.learner
        traces = [
            trajectory.tokens
            for group in groups
            for trajectory in group.trajectories
            if trajectory.tokens is not None and any(trajectory.tokens.mask)
        ]
        with old_policy.swapped_into(ModuleWeights(learner.policy.module)):
            rows = trace_logprobs(learner, traces)
        return on_policy_samples([ScoredTrace(*pair) for pair in zip(traces, rows, strict=True)])
