"""RaPO: episodes are rewarded for what the policy of the previous stage would have done too."""

from collections.abc import Iterator, Mapping, Sequence
from math import exp, sqrt
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from pydantic import Field, NonNegativeFloat
from typing_extensions import override

from grpo_cl.advantages import group_advantages
from grpo_cl.algorithms.base import CLAlgorithm, TrainerView
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.policy.continual.passes import trace_logprobs
from grpo_cl.policy.continual.predecessor import Predecessor
from grpo_cl.policy.continual.tensors import load_tensors, save_tensors
from grpo_cl.types import Record, Trajectory, TrajectoryGroup


class RapoOptions(Record):
    """The retention reward is ``strength`` · exp(-``alpha`` · drift)."""

    strength: NonNegativeFloat = 0.5
    alpha: NonNegativeFloat = 20.0
    """How fast the retention reward fades with drift, a mean of nats per token."""
    is_normalised: bool = False
    """From the second stage on, divide rewards by a spread within groups that is remembered over
    all stages, so that small differences in drift stay small next to those in success."""
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Of the remembered spread, per step."""


class RapoCL(CLAlgorithm[RapoOptions]):
    """Adds a reward for staying close to the previous stage's policy (arXiv 2605.09640)."""

    options_type = RapoOptions
    stores = "weights"
    shares_first_stage = True
    cost = "two passes over a step's episodes, without gradients"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._predecessor: Predecessor | None = None
        self._spread: float | None = None
        self._drifts: dict[int, tuple[float, ...]] = {}

    @override
    def check(self, config: GRPOConfig) -> None:
        if self.options.is_normalised and config.loss.advantage == "std":
            raise ConfigError(
                "loss.advantage=std divides by a group's own spread, which undoes "
                "cl_options.is_normalised; take loss.advantage=mean"
            )

    @override
    def augment_rollouts(
        self, groups: Sequence[TrajectoryGroup], current_domain: str
    ) -> Sequence[TrajectoryGroup]:
        """Measure every episode's drift at once, and the spread of the step's rewards."""
        self._drifts = self._measure(groups)
        if self.options.is_normalised and self._drifts:
            rewards = [self._retained(group, group.training_rewards) for group in groups]
            gaps = [gap for row in rewards for gap in group_advantages(row, "mean")]
            self._spread = self._remembered(_root_mean_square(gaps))
        return groups

    @override
    def shape_rewards(self, group: TrajectoryGroup, rewards: Sequence[float]) -> Sequence[float]:
        retained = self._retained(group, rewards)
        if not self.options.is_normalised or not self._spread:
            return retained
        return [reward / self._spread for reward in retained]

    @override
    def post_task_hook(self, trainer: TrainerView, domain: str) -> None:
        if not self.options.strength:
            return
        self._predecessor = Predecessor.of(trainer.policy.model)
        if self.options.is_normalised and self._spread is None:
            records = trainer.trajectory_buffer.records(domain)
            self._spread = _root_mean_square([record.advantage or 0.0 for record in records])

    @override
    def telemetry(self) -> Mapping[str, float]:
        numbers = {} if self._spread is None else {"cl/reward_spread": self._spread}
        drifts = [drift for row in self._drifts.values() for drift in row]
        if drifts:
            numbers["cl/drift"] = fmean(drifts)
            numbers["cl/retention"] = fmean(map(self._reward, drifts))
        return numbers

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"spread": self._spread}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._spread = state["spread"]

    @override
    def save_state(self, folder: Path) -> None:
        assert self.trainer is not None
        weights = {} if self._predecessor is None else self._predecessor.weights
        save_tensors(folder, weights, is_main=self.trainer.policy.is_main)

    @override
    def load_state(self, folder: Path) -> None:
        weights = load_tensors(folder)
        self._predecessor = Predecessor(weights) if weights else None

    def _reward(self, drift: float) -> float:
        return self.options.strength * exp(-self.options.alpha * drift)

    def _retained(self, group: TrajectoryGroup, rewards: Sequence[float]) -> Sequence[float]:
        """The rewards with what retention adds; nothing in the first stage."""
        drifts = self._drifts.get(id(group))
        if drifts is None:
            return rewards
        return [reward + self._reward(drift) for reward, drift in zip(rewards, drifts, strict=True)]

    def _remembered(self, spread: float) -> float:
        if not self._spread:
            return spread
        return self.options.decay * self._spread + (1 - self.options.decay) * spread

    def _measure(self, groups: Sequence[TrajectoryGroup]) -> dict[int, tuple[float, ...]]:
        """Drifts of all episodes by the identity of their group, which lives through the step."""
        assert self.trainer is not None
        if self._predecessor is None:
            return {}
        learner = self.trainer.policy.learner
        played = [trajectory for group in groups for trajectory in group.trajectories]
        traces = [one.tokens for one in played if one.tokens is not None and any(one.tokens.mask)]
        # Both by the same passes: the sampler's own numbers differ in rounding, which would count
        # as drift.
        now = trace_logprobs(learner, traces)
        with self._predecessor.in_place_of(learner.policy):
            before = trace_logprobs(learner, traces)
        drifts = iter(map(mean_excess, now, before))
        return {
            id(group): tuple(_next(drifts, one) for one in group.trajectories) for group in groups
        }


def mean_excess(now: Sequence[float], before: Sequence[float]) -> float:
    """How much likelier the tokens became, in nats per token; those that did not count 0."""
    return fmean(max(0.0, new - old) for new, old in zip(now, before, strict=True))


def _root_mean_square(values: Sequence[float]) -> float:
    return sqrt(fmean(value * value for value in values)) if values else 0.0


def _next(drifts: Iterator[float], trajectory: Trajectory) -> float:
    """The next drift, for an episode in which the policy wrote something; else none."""
    trace = trajectory.tokens
    return next(drifts) if trace is not None and any(trace.mask) else 0.0
