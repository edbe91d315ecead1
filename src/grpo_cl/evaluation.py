"""Measure a policy on a domain."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence

from grpo_cl.config import GRPOConfig
from grpo_cl.metrics.rmatrix import Cell, measure
from grpo_cl.rewards import RewardOracle
from grpo_cl.types import Reward, Task, Trajectory


def episode_seed(*parts: object) -> int:
    """A seed for one episode from everything that makes it this one."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])


Play = Callable[[Sequence[Task], Sequence[int]], Sequence[Trajectory]]
"""Plays an episode of each task with its seed."""


def evaluate(play: Play, tasks: Sequence[Task], oracle: RewardOracle, config: GRPOConfig) -> Cell:
    """Play each task as often as the config says. Every episode counts, whatever happened in it."""
    plays = [task for task in tasks for _ in range(config.evaluation.trials)]
    seeds = [
        episode_seed(config.seed, "evaluation", task.id, number % config.evaluation.trials)
        for number, task in enumerate(plays)
    ]
    played = play(plays, seeds)
    rewards: defaultdict[str, list[Reward]] = defaultdict(list)
    for trajectory in played:
        rewards[trajectory.task.id].append(oracle.score(trajectory))
    return measure(rewards)
