"""RaPO: a retention reward for episodes that the old policy would have generated too."""

from collections.abc import Iterator, Mapping, Sequence
from math import exp, sqrt
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from pydantic import Field, NonNegativeFloat
from typing_extensions import override

from grpo_cl.algorithms.base import CLAlgorithm, TrainerView
from grpo_cl.config import ConfigRecord, GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.policy.continual.passes import trace_logprobs
from grpo_cl.policy.continual.tensors import load_snapshot, save_snapshot
from grpo_cl.policy.model.weights import ModuleWeights, WeightSnapshot
from grpo_cl.rewards.advantages import group_advantages
from grpo_cl.types import Trajectory, TrajectoryGroup


class RapoOptions(ConfigRecord):
    """The retention reward is ``strength`` · exp(-``alpha`` · drift)."""

    strength: NonNegativeFloat = 0.5
    alpha: NonNegativeFloat = 20.0
    """Decay rate of the retention reward with drift, which is in nats per token."""
    is_normalised: bool = False
    """From the second stage on, divide rewards by a running average over all stages of their
    standard deviation within groups, so that small differences in drift stay small."""
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Factor on the running average per step."""


class RapoCL(CLAlgorithm[RapoOptions]):
    """Adds a reward for staying close to the previous stage's policy (arXiv 2605.09640)."""

    options_type = RapoOptions
    stores = "weights"
    shares_first_stage = True
    cost = "two passes over a step's episodes, without gradients"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._old_policy: WeightSnapshot | None = None
        self._reward_std: float | None = None
        self._drifts: dict[int, tuple[float, ...]] = {}

    @override
    def check(self, config: GRPOConfig) -> None:
        if self.options.is_normalised and config.loss.advantage == "std":
            raise ConfigError(
                "loss.advantage=std divides by the standard deviation of a group, which undoes "
                "cl_options.is_normalised; set loss.advantage=mean"
            )

    @override
    def augment_rollouts(
        self, groups: Sequence[TrajectoryGroup], current_domain: str
    ) -> Sequence[TrajectoryGroup]:
        """Measure the drift of all episodes, and the standard deviation of the step's rewards."""
        self._drifts = self._measure(groups)
        if self.options.is_normalised and self._drifts:
            rewards = [self._with_retention(group, group.training_rewards) for group in groups]
            centered = [value for row in rewards for value in group_advantages(row, "mean")]
            self._reward_std = self._running_average(_root_mean_square(centered))
        return groups

    @override
    def shape_rewards(self, group: TrajectoryGroup, rewards: Sequence[float]) -> Sequence[float]:
        shaped = self._with_retention(group, rewards)
        if not self.options.is_normalised or not self._reward_std:
            return shaped
        return [reward / self._reward_std for reward in shaped]

    @override
    def post_task_hook(self, trainer: TrainerView, domain: str) -> None:
        if not self.options.strength:
            return
        self._old_policy = WeightSnapshot.take(ModuleWeights(trainer.policy.model.module))
        if self.options.is_normalised and self._reward_std is None:
            records = trainer.trajectory_buffer.records(domain)
            self._reward_std = _root_mean_square([record.mean_advantage for record in records])

    @override
    def telemetry(self) -> Mapping[str, float]:
        metrics = {} if self._reward_std is None else {"cl/reward_spread": self._reward_std}
        drifts = [drift for row in self._drifts.values() for drift in row]
        if drifts:
            metrics["cl/drift"] = fmean(drifts)
            metrics["cl/retention"] = fmean(map(self._retention_reward, drifts))
        return metrics

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"spread": self._reward_std}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._reward_std = state["spread"]

    @override
    def save_state(self, folder: Path) -> None:
        save_snapshot(folder, self._old_policy, is_main=self.trainer.policy.is_main)

    @override
    def load_state(self, folder: Path) -> None:
        self._old_policy = load_snapshot(folder)

    def _retention_reward(self, drift: float) -> float:
        return self.options.strength * exp(-self.options.alpha * drift)

    def _with_retention(self, group: TrajectoryGroup, rewards: Sequence[float]) -> Sequence[float]:
        """The rewards plus the retention rewards; unchanged in the first stage."""
        drifts = self._drifts.get(id(group))
        if drifts is None:
            return rewards
        pairs = zip(rewards, drifts, strict=True)
        return [reward + self._retention_reward(drift) for reward, drift in pairs]

    def _running_average(self, reward_std: float) -> float:
        if not self._reward_std:
            return reward_std
        return self.options.decay * self._reward_std + (1 - self.options.decay) * reward_std

    def _measure(self, groups: Sequence[TrajectoryGroup]) -> dict[int, tuple[float, ...]]:
        """Drifts of all episodes by the identity of their group, which outlives the step."""
        if self._old_policy is None:
            return {}
        learner = self.trainer.policy.learner
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        traces = [t.tokens for t in trajectories if t.tokens is not None and any(t.tokens.mask)]
        # Both in the same passes: the sampler's own log-probs differ by rounding, which would
        # count as drift.
        now = trace_logprobs(learner, traces)
        with self._old_policy.swapped_into(ModuleWeights(learner.policy.module)):
            before = trace_logprobs(learner, traces)
        drifts = iter(map(mean_logprob_increase, now, before))
        return {
            id(group): tuple(_next_drift(drifts, trajectory) for trajectory in group.trajectories)
            for group in groups
        }


def mean_logprob_increase(now: Sequence[float], before: Sequence[float]) -> float:
    """The mean of max(0, log π − log π_old) over tokens, in nats."""
    return fmean(max(0.0, new - old) for new, old in zip(now, before, strict=True))


def _root_mean_square(values: Sequence[float]) -> float:
    return sqrt(fmean(value * value for value in values)) if values else 0.0


def _next_drift(drifts: Iterator[float], trajectory: Trajectory) -> float:
    """The next drift, or 0 for an episode without tokens of the policy, which has none."""
    trace = trajectory.tokens
    return next(drifts) if trace is not None and any(trace.mask) else 0.0
