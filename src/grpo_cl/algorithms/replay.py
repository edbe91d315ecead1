"""Replay: the current policy plays tasks of earlier domains again."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Literal

from typing_extensions import override

from grpo_cl.algorithms.base import TrainerView
from grpo_cl.algorithms.rehearsal import RehearsalCL
from grpo_cl.config import ConfigRecord, GRPOConfig, Share
from grpo_cl.errors import ConfigError
from grpo_cl.rewards.advantages import has_signal, has_variance, masked_rewards
from grpo_cl.runs.reservoir import Experience, even_shares
from grpo_cl.types import Task, TrajectoryGroup


class ReplayOptions(ConfigRecord):
    """How earlier tasks enter a step; ``replay_ratio`` is their fraction of its groups."""

    mode: Literal["displacing", "additive"] = "displacing"
    """``displacing`` replaces the last new tasks of the batch; ``additive`` enlarges the batch."""
    selection: Literal["varied", "random"] = "varied"
    """``varied`` prefers tasks whose episodes differed in reward when last played: a group of equal
    rewards has no gradient, so replaying a mastered task changes nothing. ``random`` takes any."""
    review: Share = 0.25
    """Probability that ``varied`` takes a random task instead, which detects forgotten ones."""


class ReplayCL(RehearsalCL[ReplayOptions]):
    """Plays some tasks of earlier domains in every step, at least one."""

    options_type = ReplayOptions
    rng_label = "replay"
    stores = "environments"
    cost = "none when displacing; additive: replay_ratio / (1 - replay_ratio) more episodes"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._varied_ids: dict[str, list[str]] = {}

    @override
    def check(self, config: GRPOConfig) -> None:
        if config.replay_ratio >= 1:
            raise ConfigError(
                f"replay_ratio {config.replay_ratio} leaves no room for new tasks; it is the "
                "fraction of replayed groups in a step and must be below 1"
            )
        is_displacing = self.options.mode == "displacing" and config.replay_ratio > 0
        if is_displacing and config.tasks_per_step(world_size=1) == 1:
            raise ConfigError(
                "a step of one task per rank has none to displace; set batch_size_per_gpu to 2 or "
                "more, or cl_options.mode=additive"
            )

    @override
    def augment_batch(self, new_tasks: Sequence[Task], current_domain: str) -> Sequence[Task]:
        earlier = self.earlier_domains(current_domain)
        if not earlier or not self.trainer.config.replay_ratio:
            return new_tasks
        rng = self.next_rng()
        count = self._num_replayed(len(new_tasks))
        replayed = [
            task
            for domain, share in even_shares(count, earlier, rng).items()
            for task in self._choose(domain, share, rng)
        ]
        is_displacing = self.options.mode == "displacing"
        num_kept = len(new_tasks) - (len(replayed) if is_displacing else 0)
        return [*new_tasks[:num_kept], *replayed]

    @override
    def augment_rollouts(
        self, groups: Sequence[TrajectoryGroup], current_domain: str
    ) -> Sequence[TrajectoryGroup]:
        replayed = [group for group in groups if group.task.domain != current_domain]
        for group in replayed:
            self._record_variance(group)
        if self.num_draws:
            self.metrics = {
                "cl/replay_groups": float(len(replayed)),
                "cl/replay_varied_groups": float(sum(map(_is_varied, replayed))),
            }
        return groups

    @override
    def post_task_hook(self, trainer: TrainerView, domain: str) -> None:
        if trainer.config.replay_ratio:
            records = trainer.trajectory_buffer.records(domain)
            self._varied_ids[domain] = varied_tasks(records)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "varied": self._varied_ids}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._varied_ids = {domain: list(ids) for domain, ids in state["varied"].items()}

    def _num_replayed(self, num_new: int) -> int:
        ratio = self.trainer.config.replay_ratio
        if self.options.mode == "additive":
            return max(1, round(num_new * ratio / (1 - ratio)))
        return min(num_new - 1, max(1, round(num_new * ratio)))

    def _choose(self, domain: str, count: int, rng: Random) -> list[Task]:
        """Training tasks of ``domain``, without repetition while there are enough."""
        tasks = {task.id: task for task in self.trainer.tasks.train_tasks(domain)}
        chosen: list[str] = []
        for _ in range(count):
            free = [task_id for task_id in tasks if task_id not in chosen] or list(tasks)
            varied = [task_id for task_id in self._varied_ids.get(domain, ()) if task_id in free]
            is_review = self.options.selection == "random" or rng.random() < self.options.review
            chosen.append(rng.choice(free if is_review or not varied else varied))
        return [tasks[task_id] for task_id in chosen]

    def _record_variance(self, group: TrajectoryGroup) -> None:
        varied = self._varied_ids.setdefault(group.task.domain, [])
        is_varied, was_varied = _is_varied(group), group.task.id in varied
        if is_varied and not was_varied:
            varied.append(group.task.id)
        if was_varied and not is_varied:
            varied.remove(group.task.id)


def varied_tasks(records: Sequence[Experience]) -> list[str]:
    """Ids of the tasks whose latest stored episodes have an advantage."""
    latest = {record.task.id: record.step for record in sorted(records, key=lambda one: one.step)}
    return sorted(
        {
            record.task.id
            for record in records
            if has_signal(record.advantage) and record.step == latest[record.task.id]
        }
    )


def _is_varied(group: TrajectoryGroup) -> bool:
    return has_variance(masked_rewards(group, group.training_rewards))
