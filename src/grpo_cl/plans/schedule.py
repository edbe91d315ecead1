"""Which tasks each step of a run plays, where that can be said before anything is played."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import JsonValue

from grpo_cl.algorithms import algorithm_for
from grpo_cl.buffer import TrajectoryBuffer
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.tasks import TaskDataLoader
from grpo_cl.types import Task

ALGORITHMS: dict[str, dict[str, JsonValue]] = {
    "joint": {},
    "replay": {"selection": "random"},
    "sequential": {},
}
"""Algorithms that only decide which tasks are played, with the options without which they would
decide by what came of earlier ones."""


class DrawnStage(NamedTuple):
    """The tasks of one stage, step by step."""

    domain: str
    steps: list[Sequence[Task]]


@dataclass
class _View:
    """What an algorithm sees of a run that is not trained here."""

    config: GRPOConfig
    tasks: TaskDataLoader
    trajectory_buffer: TrajectoryBuffer
    policy: Any = None


def plannable(config: GRPOConfig) -> GRPOConfig:
    """The run as it can be planned: what depends on rewards is refused, or settled by chance."""
    fixed = ALGORITHMS.get(config.cl_algorithm)
    if fixed is None:
        raise ConfigError(
            f"cl_algorithm {config.cl_algorithm!r} changes how a policy learns and not only which "
            f"tasks it plays, so other engines cannot follow it; {', '.join(ALGORITHMS)} can be "
            "planned, `grpo-cl train` trains with all"
        )
    for name, value in fixed.items():
        if config.cl_options.get(name, value) != value:
            raise ConfigError(
                f"cl_options.{name}={config.cl_options[name]} waits for the rewards of earlier "
                f"steps, which a plan cannot know; leave it out or set cl_options.{name}={value}"
            )
    for is_met, sentence in _limits(config):
        if is_met:
            raise ConfigError(sentence)
    return config.model_copy(update={"cl_options": {**config.cl_options, **fixed}})


def _limits(config: GRPOConfig) -> list[tuple[bool, str]]:
    """What else a run may ask for that other engines cannot be told, each with a way out."""
    return [
        (
            config.tasks.strategy == "weighted",
            "tasks.strategy=weighted draws by rewards, which a plan cannot know; "
            "choose epoch, random or curriculum",
        ),
        (
            config.loss.zero_variance == "resample",
            "loss.zero_variance=resample draws by rewards, which a plan cannot know; "
            "leave it out, engines have filters of their own",
        ),
        (
            config.eval_interval is not None,
            "eval_interval measures within a stage, and a plan only after each; leave it out",
        ),
        (
            config.evaluation.drift,
            "evaluation.drift compares policies while a run holds them; leave it out of a plan",
        ),
    ]


def draw(config: GRPOConfig, tasks: TaskDataLoader) -> Iterator[DrawnStage]:
    """Every stage with the tasks that ``grpo-cl train`` would play with the same description."""
    algorithm = algorithm_for(config)
    algorithm.bind(_View(config, tasks, TrajectoryBuffer(config)))
    for domain in config.task_order:
        steps = [
            algorithm.augment_batch(tasks.next_batch(domain, config.tasks_per_step), domain)
            for _ in range(config.num_steps_per_task)
        ]
        yield DrawnStage(domain, steps)
