"""Dark experience replay: the policy is held to whole distributions it once had."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from pydantic import NonNegativeFloat, PositiveInt
from typing_extensions import override

from grpo_cl.algorithms.base import CLAlgorithm, TrainerView
from grpo_cl.buffer import Strategy, earlier_domains
from grpo_cl.policy.continual.distillation import keep_shares, share_loss
from grpo_cl.policy.continual.memory import Kept, Memory, sample_traced
from grpo_cl.policy.continual.tensors import load_tensors, save_tensors
from grpo_cl.types import Record, TrajectoryGroup


class DerOptions(Record):
    """How strongly, and how much is kept."""

    alpha: NonNegativeFloat = 1.0
    """Weight of KL(kept distribution, policy), a mean per token of the policy's own."""
    beta: NonNegativeFloat = 0.0
    """Weight of the negative log-likelihood of kept successes, as DER++ has it."""
    top: PositiveInt = 64
    """Likeliest tokens kept at each position; all others are one more outcome."""
    memory: PositiveInt = 64
    """Episodes kept of each domain."""
    batch: PositiveInt = 16
    """Of them in an update."""
    strategy: Strategy = "recent"
    """Which episodes are kept."""


class DerCL(CLAlgorithm[DerOptions]):
    """Keeps episodes with the policy's likeliest tokens at the end of their stage."""

    options_type = DerOptions
    stores = "trajectories"
    shares_first_stage = True
    cost = "a pass over `batch` episodes per update"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._memory = Memory()
        self._draws = 0
        self._drawn: list[Kept] = []
        self._numbers: dict[str, float] = {}

    @property
    def _is_active(self) -> bool:
        return self.options.alpha > 0 or self.options.beta > 0

    @override
    def augment_rollouts(
        self, groups: Sequence[TrajectoryGroup], current_domain: str
    ) -> Sequence[TrajectoryGroup]:
        assert self.trainer is not None
        config = self.trainer.config
        self._numbers = {}
        if not len(self._memory):
            return groups
        self._draws += 1
        rng = Random(f"{config.seed}/der/{self._draws}")
        earlier = earlier_domains(config.task_order, current_domain)
        self._drawn = self._memory.draw(self.options.batch, earlier, rng)
        return groups

    @override
    def auxiliary_loss(self, policy: Any) -> Any:
        assert self.trainer is not None
        if not self._drawn:
            return None
        learner = self.trainer.policy.learner
        options = self.options
        found = share_loss(learner, self._drawn, alpha=options.alpha, beta=options.beta)
        tokens = found.sums["tokens"]
        self._numbers = {
            "cl/der_kl": found.sums["kl"] / tokens,
            "cl/der_nll": found.sums["nll"] / tokens,
            "cl/der_tokens": tokens,
            "cl/der_kept": float(len(self._memory)),
        }
        return found.loss

    @override
    def post_task_hook(self, trainer: TrainerView, domain: str) -> None:
        if not self._is_active or domain == trainer.config.task_order[-1]:
            return
        found = sample_traced(
            trainer.trajectory_buffer, domain, self.options.memory, self.options.strategy
        )
        self._memory.kept[domain] = keep_shares(trainer.policy.learner, found, self.options.top)

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
        save_tensors(folder, self._memory.tensors(), is_main=self.trainer.policy.is_main)

    @override
    def load_state(self, folder: Path) -> None:
        assert self.trainer is not None
        self._memory.load(load_tensors(folder), self.trainer.config.task_order)
