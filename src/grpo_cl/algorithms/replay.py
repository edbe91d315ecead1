"""Replay: tasks of earlier domains are played again by today's policy."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Literal

from typing_extensions import override

from grpo_cl.advantages import has_variance, known_rewards
from grpo_cl.algorithms.base import CLAlgorithm, TrainerView
from grpo_cl.buffer import Experience, earlier_domains, even_shares
from grpo_cl.config import GRPOConfig, Share
from grpo_cl.errors import ConfigError
from grpo_cl.types import Record, Task, TrajectoryGroup


class ReplayOptions(Record):
    """How earlier tasks join a step; ``replay_ratio`` is their share of its groups."""

    mode: Literal["displacing", "additive"] = "displacing"
    """``displacing`` gives them the places of new tasks, the last of the batch; ``additive`` lets
    the step grow."""
    selection: Literal["varied", "random"] = "varied"
    """``varied`` takes tasks whose episodes differed in reward when last played, by chance where
    there are none: a group of equal rewards has no gradient, so mastered tasks protect nothing."""
    review: Share = 0.25
    """Chance that a place is given to any task, so that one that was unlearned is noticed."""


class ReplayCL(CLAlgorithm[ReplayOptions]):
    """Plays some tasks of earlier domains in every step, at least one."""

    options_type = ReplayOptions
    stores = "environments"
    shares_first_stage = True
    cost = "none when displacing; additive: replay_ratio / (1 - replay_ratio) more episodes"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._draws = 0
        self._varied: dict[str, list[str]] = {}
        self._numbers: dict[str, float] = {}

    @override
    def check(self, config: GRPOConfig) -> None:
        if config.replay_ratio >= 1:
            raise ConfigError(
                f"replay_ratio {config.replay_ratio} leaves no place for new tasks; it is the "
                "share of replayed groups in a step and must be below 1"
            )
        is_full = self.options.mode == "displacing" and config.tasks_per_step == 1
        if is_full and config.replay_ratio:
            raise ConfigError(
                "a step of one task cannot displace any; set batch_size_per_gpu to 2 or more, or "
                "cl_options.mode=additive"
            )

    @override
    def augment_batch(self, new_tasks: Sequence[Task], current_domain: str) -> Sequence[Task]:
        assert self.trainer is not None
        config = self.trainer.config
        earlier = earlier_domains(config.task_order, current_domain)
        if not earlier or not config.replay_ratio:
            return new_tasks
        self._draws += 1
        rng = Random(f"{config.seed}/replay/{self._draws}")
        count = self._count(len(new_tasks))
        old = [
            task
            for domain, share in even_shares(count, earlier, rng).items()
            for task in self._pick(domain, share, rng)
        ]
        kept = len(new_tasks) - (len(old) if self.options.mode == "displacing" else 0)
        return [*new_tasks[:kept], *old]

    @override
    def augment_rollouts(
        self, groups: Sequence[TrajectoryGroup], current_domain: str
    ) -> Sequence[TrajectoryGroup]:
        old = [group for group in groups if group.task.domain != current_domain]
        for group in old:
            self._remember(group)
        if self._draws:
            self._numbers = {
                "cl/replay_groups": float(len(old)),
                "cl/replay_varied_groups": float(sum(map(_is_varied, old))),
            }
        return groups

    @override
    def post_task_hook(self, trainer: TrainerView, domain: str) -> None:
        if trainer.config.replay_ratio:
            records = trainer.trajectory_buffer.records(domain)
            self._varied[domain] = varied_tasks(records)

    @override
    def telemetry(self) -> Mapping[str, float]:
        return self._numbers

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"draws": self._draws, "varied": self._varied}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._draws = state["draws"]
        self._varied = {domain: list(ids) for domain, ids in state["varied"].items()}

    def _count(self, num_new: int) -> int:
        assert self.trainer is not None
        ratio = self.trainer.config.replay_ratio
        if self.options.mode == "additive":
            return max(1, round(num_new * ratio / (1 - ratio)))
        return min(num_new - 1, max(1, round(num_new * ratio)))

    def _pick(self, domain: str, count: int, rng: Random) -> list[Task]:
        """Training tasks of ``domain``, different ones while there are enough."""
        assert self.trainer is not None
        tasks = {task.id: task for task in self.trainer.tasks.train_tasks(domain)}
        chosen: list[str] = []
        for _ in range(count):
            free = [name for name in tasks if name not in chosen] or list(tasks)
            varied = [name for name in self._varied.get(domain, ()) if name in free]
            is_review = self.options.selection == "random" or rng.random() < self.options.review
            chosen.append(rng.choice(free if is_review or not varied else varied))
        return [tasks[name] for name in chosen]

    def _remember(self, group: TrajectoryGroup) -> None:
        varied = self._varied.setdefault(group.task.domain, [])
        is_varied, was_varied = _is_varied(group), group.task.id in varied
        if is_varied and not was_varied:
            varied.append(group.task.id)
        if was_varied and not is_varied:
            varied.remove(group.task.id)


def varied_tasks(records: Sequence[Experience]) -> list[str]:
    """Tasks whose episodes had an advantage when they were last played, of those that are kept."""
    latest = {record.task.id: record.step for record in sorted(records, key=_step)}
    return sorted(
        {
            record.task.id
            for record in records
            if record.advantage and record.step == latest[record.task.id]
        }
    )


def _step(record: Experience) -> int:
    return record.step


def _is_varied(group: TrajectoryGroup) -> bool:
    return has_variance(known_rewards(group, group.training_rewards))
