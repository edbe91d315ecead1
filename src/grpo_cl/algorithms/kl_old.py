"""Distillation: the policy is held to what it was when an earlier stage ended."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Literal, Self

from pydantic import NonNegativeFloat, PositiveInt, model_validator
from typing_extensions import override

from grpo_cl.algorithms.base import CLAlgorithm, TrainerView
from grpo_cl.buffer import Strategy, earlier_domains
from grpo_cl.policy.batching import Sample
from grpo_cl.policy.continual.distillation import (
    Scored,
    current_samples,
    keep_logprobs,
    old_samples,
    token_kl_loss,
)
from grpo_cl.policy.continual.memory import Memory, sample_traced
from grpo_cl.policy.continual.passes import trace_logprobs
from grpo_cl.policy.continual.predecessor import Predecessor
from grpo_cl.policy.continual.tensors import load_tensors, save_tensors
from grpo_cl.types import Record, TrajectoryGroup


class KLOldOptions(Record):
    """How strongly, and on which tokens."""

    strength: NonNegativeFloat = 1.0
    """Weight of the divergence, a mean per token."""
    states: Literal["old", "current"] = "old"
    """``old`` holds on kept episodes of earlier domains; ``current`` on those of today's, as
    learning without forgetting does, to the policy at the end of the previous stage."""
    estimator: Literal["k2", "k3", "nll"] = "k3"
    """Of the divergence; which gradient each has is in docs/algorithms.md."""
    memory: PositiveInt = 64
    """Episodes kept of each domain."""
    batch: PositiveInt = 16
    """Of them in an update."""
    strategy: Strategy = "recent"
    """Which episodes are kept; the recent ones are closest to the policy they stand for."""

    @model_validator(mode="after")
    def _estimator_has_a_gradient(self) -> Self:
        if self.states == "current" and self.estimator == "nll":
            raise ValueError("the mean gradient of nll on today's tokens is 0; take k2 or k3")
        return self


class KLOldCL(CLAlgorithm[KLOldOptions]):
    """Keeps episodes with the log-probs they had when their stage ended, and holds to those."""

    options_type = KLOldOptions
    stores = "trajectories"
    shares_first_stage = True
    cost = "a pass over `batch` episodes per update; on current states a pass without gradient too"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._memory = Memory()
        self._predecessor: Predecessor | None = None
        self._draws = 0
        self._samples: list[Sample] = []
        self._numbers: dict[str, float] = {}

    @property
    def _is_old(self) -> bool:
        return self.options.states == "old"

    @override
    def augment_rollouts(
        self, groups: Sequence[TrajectoryGroup], current_domain: str
    ) -> Sequence[TrajectoryGroup]:
        self._numbers = {}
        if self._is_old:
            self._samples = self._old(current_domain)
        elif self._predecessor is not None:
            self._samples = self._current(groups, self._predecessor)
        return groups

    @override
    def auxiliary_loss(self, policy: Any) -> Any:
        assert self.trainer is not None
        if not self._samples:
            return None
        found = token_kl_loss(
            self.trainer.policy.learner,
            self._samples,
            self.options.estimator,
            is_old=self._is_old,
        )
        self._numbers = {
            "cl/kl_old": found.sums["kl"] / found.sums["tokens"],
            "cl/kl_old_tokens": found.sums["tokens"],
            "cl/kl_old_kept": float(len(self._memory)),
        }
        return self.options.strength * found.loss

    @override
    def post_task_hook(self, trainer: TrainerView, domain: str) -> None:
        if not self.options.strength or domain == trainer.config.task_order[-1]:
            return
        if not self._is_old:
            self._predecessor = Predecessor.of(trainer.policy.model)
            return
        found = sample_traced(
            trainer.trajectory_buffer, domain, self.options.memory, self.options.strategy
        )
        self._memory.kept[domain] = keep_logprobs(trainer.policy.learner, found)

    @override
    def telemetry(self) -> Mapping[str, float]:
        return self._numbers

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"draws": self._draws}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._draws = state["draws"]

    @override
    def save_state(self, folder: Path) -> None:
        assert self.trainer is not None
        weights = {} if self._predecessor is None else self._predecessor.weights
        kept = self._memory.tensors() if self._is_old else weights
        save_tensors(folder, kept, is_main=self.trainer.policy.is_main)

    @override
    def load_state(self, folder: Path) -> None:
        assert self.trainer is not None
        tensors = load_tensors(folder)
        if self._is_old:
            self._memory.load(tensors, self.trainer.config.task_order)
        elif tensors:
            self._predecessor = Predecessor(tensors)

    def _old(self, domain: str) -> list[Sample]:
        assert self.trainer is not None
        config = self.trainer.config
        if not len(self._memory):
            return []
        self._draws += 1
        rng = Random(f"{config.seed}/kl_old/{self._draws}")
        earlier = earlier_domains(config.task_order, domain)
        return old_samples(self._memory.draw(self.options.batch, earlier, rng))

    def _current(self, groups: Sequence[TrajectoryGroup], predecessor: Predecessor) -> list[Sample]:
        assert self.trainer is not None
        learner = self.trainer.policy.learner
        traces = [
            trajectory.tokens
            for group in groups
            for trajectory in group.trajectories
            if trajectory.tokens is not None and any(trajectory.tokens.mask)
        ]
        with predecessor.in_place_of(learner.policy):
            rows = trace_logprobs(learner, traces)
        return current_samples([Scored(*pair) for pair in zip(traces, rows, strict=True)])
