"""Trajectory replay: off-policy updates on stored episodes of earlier domains."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, NonNegativeFloat, PositiveFloat
from typing_extensions import override

from grpo_cl.algorithms.rehearsal import RehearsalCL
from grpo_cl.config import ConfigRecord
from grpo_cl.policy.continual.episodic_memory import OVERSAMPLING, policy_trace
from grpo_cl.policy.continual.off_policy import OffPolicyParams, off_policy_loss, stored_samples
from grpo_cl.policy.learner.batching import TrainingSample
from grpo_cl.rewards.advantages import has_signal
from grpo_cl.runs.reservoir import Experience, Strategy, even_shares
from grpo_cl.types import TrajectoryGroup


class TrajectoryReplayOptions(ConfigRecord):
    """How stored episodes enter an update; ``replay_buffer_size`` of each domain are stored."""

    share: Annotated[float, Field(ge=0, lt=1)] = 0.25
    """Fraction of stored episodes in an update; they are added to the new ones."""
    strategy: Strategy = "random"
    """How stored episodes are drawn from the trajectory buffer."""
    cap: PositiveFloat = 2.0
    """The largest importance weight of a token."""
    max_drift: PositiveFloat = 0.5
    """Mean |log ratio| over an episode's tokens above which its policy gradient is dropped."""
    cloning: NonNegativeFloat = 0.0
    """Weight of KL(sampler, policy) on the stored tokens."""


class ClearOptions(TrajectoryReplayOptions):
    """The defaults of CLEAR: half of an update is replayed, with behaviour cloning."""

    share: Annotated[float, Field(ge=0, lt=1)] = 0.5
    cloning: NonNegativeFloat = 0.01


class TrajectoryReplayCL(RehearsalCL[TrajectoryReplayOptions]):
    """Adds a policy gradient of stored episodes with per-token importance weights."""

    options_type = TrajectoryReplayOptions
    rng_label = "trajectory_replay"
    stores = "trajectories"
    cost = "share / (1 - share) more episodes to train on, none to play"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._samples: list[TrainingSample] = []

    @override
    def augment_rollouts(
        self, groups: Sequence[TrajectoryGroup], current_domain: str
    ) -> Sequence[TrajectoryGroup]:
        earlier = self.earlier_domains(current_domain)
        self._samples, self.metrics = [], {}
        num_new = sum(len(group.trajectories) for group in groups)
        count = round(num_new * self.options.share / (1 - self.options.share))
        if earlier and count:
            records = self._draw(even_shares(count, earlier, self.next_rng()))
            scale = len(records) / num_new
            self._samples = stored_samples(records, self.trainer.config, scale=scale)
            self.metrics = {"cl/replay_trajectories": float(len(self._samples))}
        return groups

    @override
    def auxiliary_loss(self, policy: Any) -> Any:
        if not self._samples:
            return None
        options = self.options
        params = OffPolicyParams(options.cap, options.max_drift, options.cloning)
        result = off_policy_loss(self.trainer.policy.learner, self._samples, params)
        tokens = result.sums["tokens"]
        self.metrics = {
            "cl/replay_trajectories": result.sums["sequences"],
            "cl/replay_dropped": result.sums["dropped"],
            "cl/replay_weight": result.sums["weight"] / tokens,
            "cl/replay_kl": result.sums["clone_kl"] / tokens,
        }
        return result.loss

    def _draw(self, shares: Mapping[str, int]) -> list[Experience]:
        buffer, strategy = self.trainer.trajectory_buffer, self.options.strategy
        drawn = {
            domain: buffer.sample(domain, OVERSAMPLING * share, strategy)
            for domain, share in shares.items()
        }
        return [
            record
            for domain, records in drawn.items()
            for record in list(filter(self._has_gradient, records))[: shares[domain]]
        ]

    def _has_gradient(self, record: Experience) -> bool:
        has_loss = has_signal(record.advantage) or self.options.cloning > 0
        return has_loss and policy_trace(record) is not None


class ClearCL(TrajectoryReplayCL):
    """Trajectory replay that also clones the policies that played (CLEAR, arXiv 1811.11682)."""

    options_type = ClearOptions
