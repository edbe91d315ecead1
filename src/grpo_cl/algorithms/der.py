"""Dark experience replay: distillation from stored distributions of the policy."""

from collections.abc import Sequence
from typing import Any

from pydantic import NonNegativeFloat, PositiveInt
from typing_extensions import override

from grpo_cl.algorithms.episodic import EpisodicCL, MemoryOptions
from grpo_cl.policy.continual.distillation import record_top_logprobs, top_kl_loss
from grpo_cl.policy.continual.episodic_memory import MemoryEpisode
from grpo_cl.runs.reservoir import Experience
from grpo_cl.types import TokenTrace, TrajectoryGroup


class DerOptions(MemoryOptions):
    """Weights of the losses, and what is stored."""

    alpha: NonNegativeFloat = 1.0
    """Weight of KL(stored distribution, policy), a mean per token of the policy."""
    beta: NonNegativeFloat = 0.0
    """Weight of the negative log-likelihood of stored successes, a mean per token of theirs, as in
    DER++."""
    top: PositiveInt = 64
    """Likeliest tokens stored per position; all others are one more outcome."""


class DerCL(EpisodicCL[DerOptions]):
    """Stores episodes with the policy's likeliest tokens at the end of their stage."""

    options_type = DerOptions
    rng_label = "der"
    cost = "a pass over `batch` episodes per update"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._episodes: list[MemoryEpisode] = []

    @property
    @override
    def is_active(self) -> bool:
        return self.options.alpha > 0 or self.options.beta > 0

    @override
    def augment_rollouts(
        self, groups: Sequence[TrajectoryGroup], current_domain: str
    ) -> Sequence[TrajectoryGroup]:
        self.metrics = {}
        self._episodes = self.draw_episodes(current_domain)
        return groups

    @override
    def auxiliary_loss(self, policy: Any) -> Any:
        if not self._episodes:
            return None
        learner, options = self.trainer.policy.learner, self.options
        result = top_kl_loss(learner, self._episodes, alpha=options.alpha, beta=options.beta)
        tokens = result.sums["tokens"]
        self.metrics = {
            "cl/der_kl": result.sums["kl"] / tokens,
            "cl/der_nll": result.sums["nll"] / max(1.0, result.sums["success_tokens"]),
            "cl/der_tokens": tokens,
            "cl/der_kept": float(len(self.memory)),
        }
        return result.loss

    @override
    def record(self, stored: Sequence[tuple[Experience, TokenTrace]]) -> list[MemoryEpisode]:
        return record_top_logprobs(self.trainer.policy.learner, stored, self.options.top)
