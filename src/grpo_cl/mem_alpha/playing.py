"""Let somebody write memories, and measure what they are worth."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from statistics import fmean, variance
from typing import NamedTuple, Protocol

from grpo_cl.casting import HostedActor
from grpo_cl.config import GRPOConfig
from grpo_cl.evaluation import episode_seed
from grpo_cl.mem_alpha.writers import WriterActor
from grpo_cl.metrics.statistics import TASKS_COVERED, Interval, Part, Sample, t_interval
from grpo_cl.models import Manner, Models
from grpo_cl.rewards import RewardOracle
from grpo_cl.rollout import Actor, run_episodes
from grpo_cl.tasks import TaskDataLoader
from grpo_cl.trainer.cast import Cast
from grpo_cl.types import Reward, RewardType, Task, Trajectory

DOMAIN = "memory"
PARTS = {
    "r1": RewardType.ANSWERS,
    "r2": RewardType.CALLS,
    "r3": RewardType.COMPRESSION,
    "r4": RewardType.CONTENT,
}
TOTAL = "r_t"
"""The mean of what the steps earn."""


class Who(NamedTuple):
    """Who writes: a rule, a hosted model, or else the policy of the settings."""

    rule: str | None = None
    model: str | None = None
    base_url: str | None = None


class Player(Protocol):
    """Plays an episode of each task."""

    def __call__(self, tasks: Sequence[Task]) -> list[Trajectory]:
        """The episodes, in the order of the tasks."""
        ...


@contextmanager
def player(config: GRPOConfig, who: Who) -> Generator[Player]:
    """Somebody who plays, for as long as the models are open."""
    domains = TaskDataLoader(config).domains

    def play(actor: Actor, tasks: Sequence[Task]) -> list[Trajectory]:
        seeds = [episode_seed(config.seed, DOMAIN, task.id) for task in tasks]
        return run_episodes(actor, domains, tasks, config.rollout, seeds=seeds)

    if who.rule:
        rule = WriterActor(who.rule)
        yield lambda tasks: play(rule, tasks)
    elif who.model:
        manner = Manner(0.0, config.max_new_tokens)
        with Models(config.models) as models:
            hosted = HostedActor(models.open(who.model, manner, base_url=who.base_url))
            yield lambda tasks: [hosted.with_calls(each) for each in play(hosted, tasks)]
    else:
        from grpo_cl.policy.runtime import PolicyRuntime  # noqa: PLC0415  # torch is slow to import

        runtime = PolicyRuntime(config)
        actor = runtime.actor(temperature=0.0)
        yield lambda tasks: runtime.spread(
            len(tasks), lambda places: play(actor, [tasks[place] for place in places])
        )


def instances_of(config: GRPOConfig) -> list[Task]:
    """All of the file that the config names, or generated test tasks."""
    loader = TaskDataLoader(config)
    if config.memory.path is None:
        return loader.evaluation_tasks(DOMAIN)
    return list(loader.domains[DOMAIN].tasks("base"))[: config.evaluation.max_tasks]


def score(config: GRPOConfig, played: Sequence[Trajectory]) -> list[Reward]:
    """What each episode earned."""
    cast = Cast(config)
    try:
        oracle = RewardOracle(TaskDataLoader(config).domains, memory=cast.memory)
        return [scored.reward for scored in oracle.score_all(played)]
    finally:
        cast.close()


def intervals(rewards: Sequence[Reward]) -> dict[str, Interval]:
    """The mean over instances of each part of the reward, with its 95 % interval over them."""
    found = {
        name: [reward.components.get(part, 0.0) for reward in rewards]
        for name, part in PARTS.items()
    }
    found[TOTAL] = [
        fmean(step.value for step in reward.steps) if reward.steps else 0.0 for reward in rewards
    ]
    return {name: _interval(values) for name, values in found.items()}


def _interval(values: Sequence[float]) -> Interval:
    spread = variance(values) / len(values) if len(values) > 1 else 0.0
    part = Part(spread, max(len(values) - 1, 1))
    sample = Sample(1, len(values), "t over instances", TASKS_COVERED)
    return t_interval(fmean(values), spread, [part], sample)
