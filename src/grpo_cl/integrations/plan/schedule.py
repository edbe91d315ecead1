"""The tasks of each step of a run, for algorithms whose schedule does not depend on rewards."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import JsonValue

from grpo_cl.algorithms import algorithm_for
from grpo_cl.config import GRPOConfig
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.errors import ConfigError
from grpo_cl.runs.trajectory_buffer import TrajectoryBuffer
from grpo_cl.trainer.auxiliary_models import require_models
from grpo_cl.types import Task

ALGORITHMS: dict[str, dict[str, JsonValue]] = {
    "joint": {},
    "replay": {"selection": "random"},
    "sequential": {},
}
"""Algorithms that only choose tasks, with the options that keep the choice reward-independent."""


class StageTasks(NamedTuple):
    """The tasks of one stage, step by step."""

    domain: str
    steps: list[Sequence[Task]]


@dataclass
class _PlanView:
    """The ``TrainerView`` of a run that another engine trains."""

    config: GRPOConfig
    tasks: TaskDataLoader
    trajectory_buffer: TrajectoryBuffer
    policy: Any = None


def plannable_config(config: GRPOConfig) -> GRPOConfig:
    """The config with reward-independent options; ``ConfigError`` if it cannot be planned."""
    require_models(config)
    fixed = ALGORITHMS.get(config.cl_algorithm)
    if fixed is None:
        raise ConfigError(
            f"cl_algorithm {config.cl_algorithm!r} changes the policy update, not only the "
            f"choice of tasks, so other engines cannot run it; {', '.join(ALGORITHMS)} can be "
            "planned, `grpo-cl train` supports all"
        )
    for name, value in fixed.items():
        if config.cl_options.get(name, value) != value:
            raise ConfigError(
                f"cl_options.{name}={config.cl_options[name]} depends on the rewards of earlier "
                f"steps, which a plan does not have; remove it or set cl_options.{name}={value}"
            )
    for is_unsupported, message in _limits(config):
        if is_unsupported:
            raise ConfigError(message)
    return config.model_copy(update={"cl_options": {**config.cl_options, **fixed}})


def _limits(config: GRPOConfig) -> list[tuple[bool, str]]:
    """Whether each unsupported setting is used, and its error message."""
    return [
        (
            config.tasks.strategy == "weighted",
            "tasks.strategy=weighted depends on rewards, which a plan does not have; "
            "choose epoch, random or curriculum",
        ),
        (
            config.loss.zero_variance == "resample",
            "loss.zero_variance=resample depends on rewards, which a plan does not have; "
            "remove it, engines have filters of their own",
        ),
        (
            config.eval_interval is not None,
            "eval_interval evaluates within a stage, but a plan only after each one; remove it",
        ),
        (
            config.evaluation.drift,
            "evaluation.drift compares policies in memory during a run; remove it from a plan",
        ),
    ]


def stage_tasks(config: GRPOConfig, tasks: TaskDataLoader) -> Iterator[StageTasks]:
    """The tasks of every stage, the same as one process of ``grpo-cl train`` uses."""
    algorithm = algorithm_for(config)
    algorithm.bind(_PlanView(config, tasks, TrajectoryBuffer(config)))
    count = config.tasks_per_step(world_size=1)
    for domain in config.task_order:
        steps = [
            algorithm.augment_batch(tasks.next_batch(domain, count), domain)
            for _ in range(config.num_steps_per_task)
        ]
        yield StageTasks(domain, steps)
