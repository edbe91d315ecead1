"""Replay: earlier domains are played again by today's policy."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from typing_extensions import override

from grpo_cl.algorithms.base import CLAlgorithm
from grpo_cl.types import Task


class ReplayCL(CLAlgorithm):
    """Adds tasks of earlier domains to each batch; ``replay_ratio`` of them per new task."""

    stores = "prompts"
    cost = "replay_ratio more episodes per step"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._draws = 0

    @override
    def augment_batch(self, new_tasks: Sequence[Task], current_domain: str) -> Sequence[Task]:
        assert self.trainer is not None
        config = self.trainer.config
        earlier = config.task_order[: config.task_order.index(current_domain)]
        count = round(config.replay_ratio * len(new_tasks))
        if not earlier or not count:
            return new_tasks
        share = -(-count // len(earlier))
        records = self.trainer.trajectory_buffer.sample_multi_domain(
            domains=earlier, num_samples_per_domain=share, strategy="has_variance"
        )
        self._draws += 1
        chosen = Random(f"{config.seed}/replay/{self._draws}").sample(
            records, min(count, len(records))
        )
        return [*new_tasks, *(record.task for record in chosen)]

    @override
    def telemetry(self) -> Mapping[str, float]:
        return {"replay_draws": float(self._draws)}

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"draws": self._draws}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._draws = state["draws"]
