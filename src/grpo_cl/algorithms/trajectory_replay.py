"""Trajectory replay: stored episodes of earlier domains are learned from again."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Annotated, Any

from pydantic import Field, NonNegativeFloat, PositiveFloat
from typing_extensions import override

from grpo_cl.algorithms.base import CLAlgorithm
from grpo_cl.buffer import Experience, Strategy, earlier_domains, even_shares
from grpo_cl.policy.batching import Sample
from grpo_cl.policy.continual.memory import OVERDRAW, written
from grpo_cl.policy.continual.offpolicy import Rules, off_policy_loss, stored_samples
from grpo_cl.types import Record, TrajectoryGroup


class TrajectoryReplayOptions(Record):
    """How stored episodes join an update; ``replay_buffer_size`` of each domain are stored."""

    share: Annotated[float, Field(ge=0, lt=1)] = 0.25
    """Of the episodes of an update; they come on top of the new ones."""
    strategy: Strategy = "random"
    """Which stored episodes are drawn."""
    cap: PositiveFloat = 2.0
    """The largest importance weight of a token."""
    max_drift: PositiveFloat = 0.5
    """Mean of |log ratio| over an episode's tokens above which its reward teaches nothing."""
    cloning: NonNegativeFloat = 0.0
    """Weight of KL(policy that played, policy) on the stored tokens."""


class ClearOptions(TrajectoryReplayOptions):
    """The same with the defaults of CLEAR: half of an update is old, and cloned."""

    share: Annotated[float, Field(ge=0, lt=1)] = 0.5
    cloning: NonNegativeFloat = 0.1


class TrajectoryReplayCL(CLAlgorithm[TrajectoryReplayOptions]):
    """Adds a policy gradient of stored episodes, importance-weighted token by token."""

    options_type = TrajectoryReplayOptions
    stores = "trajectories"
    shares_first_stage = True
    cost = "share / (1 - share) more episodes to learn from, none to play"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._draws = 0
        self._samples: list[Sample] = []
        self._numbers: dict[str, float] = {}

    @override
    def augment_rollouts(
        self, groups: Sequence[TrajectoryGroup], current_domain: str
    ) -> Sequence[TrajectoryGroup]:
        assert self.trainer is not None
        config = self.trainer.config
        earlier = earlier_domains(config.task_order, current_domain)
        self._samples, self._numbers = [], {}
        num_new = sum(len(group.trajectories) for group in groups)
        count = round(num_new * self.options.share / (1 - self.options.share))
        if earlier and count:
            self._draws += 1
            rng = Random(f"{config.seed}/trajectory_replay/{self._draws}")
            records = self._draw(even_shares(count, earlier, rng))
            self._samples = stored_samples(records, config, scale=len(records) / num_new)
            self._numbers = {"cl/replay_trajectories": float(len(self._samples))}
        return groups

    @override
    def auxiliary_loss(self, policy: Any) -> Any:
        assert self.trainer is not None
        if not self._samples:
            return None
        rules = Rules(self.options.cap, self.options.max_drift, self.options.cloning)
        found = off_policy_loss(self.trainer.policy.learner, self._samples, rules)
        tokens = found.sums["tokens"]
        self._numbers = {
            "cl/replay_trajectories": found.sums["sequences"],
            "cl/replay_dropped": found.sums["dropped"],
            "cl/replay_weight": found.sums["weight"] / tokens,
            "cl/replay_kl": found.sums["clone_kl"] / tokens,
        }
        return found.loss

    @override
    def telemetry(self) -> Mapping[str, float]:
        return self._numbers

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"draws": self._draws}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._draws = state["draws"]

    def _draw(self, shares: Mapping[str, int]) -> list[Experience]:
        assert self.trainer is not None
        buffer, strategy = self.trainer.trajectory_buffer, self.options.strategy
        drawn = {
            domain: buffer.sample(domain, OVERDRAW * share, strategy)
            for domain, share in shares.items()
        }
        return [
            record
            for domain, records in drawn.items()
            for record in [one for one in records if self._teaches(one)][: shares[domain]]
        ]

    def _teaches(self, record: Experience) -> bool:
        return written(record) is not None and bool(record.advantage or self.options.cloning)


class ClearCL(TrajectoryReplayCL):
    """Trajectory replay that also clones the policies that played (CLEAR, arXiv 1811.11682)."""

    options_type = ClearOptions
