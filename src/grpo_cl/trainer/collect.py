"""Collect the groups of one step: play every task G times, score, resample without variance."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from grpo_cl.config import GRPOConfig
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.rewards import ScoredTrajectory, training_reward
from grpo_cl.rewards.advantages import (
    INFRASTRUCTURE,
    compute_advantages,
    has_signal,
    valid_rewards,
)
from grpo_cl.trainer.evaluate import Play, episode_seed, outcome_counts, require_valid
from grpo_cl.types import SUCCESS, Task, TrajectoryGroup


class Batch(NamedTuple):
    """The groups of one step."""

    groups: list[TrajectoryGroup]
    num_resampled: int


def collect(
    tasks: Sequence[Task],
    domain: str,
    *,
    loader: TaskDataLoader,
    play: Play,
    config: GRPOConfig,
    step: int,
) -> Batch:
    """One group per task; with ``zero_variance=resample`` groups without variance are replaced.

    The replacements are groups of further tasks of ``domain``.
    """
    groups = _play_groups(tasks, play, config, label=f"step/{step}/0")
    _observe(loader, groups)
    num_resampled = 0
    attempts = config.loss.max_resamples if config.loss.zero_variance == "resample" else 0
    for attempt in range(1, attempts + 1):
        flat = [index for index, group in enumerate(groups) if _is_flat(group, config)]
        if not flat:
            break
        more_tasks = loader.next_batch(domain, len(flat))
        replacements = _play_groups(more_tasks, play, config, label=f"step/{step}/{attempt}")
        _observe(loader, replacements)
        for index, group in zip(flat, replacements, strict=True):
            groups[index] = group
        num_resampled += len(flat)
    return Batch(groups, num_resampled)


def _play_groups(
    tasks: Sequence[Task], play: Play, config: GRPOConfig, *, label: str
) -> list[TrajectoryGroup]:
    """Play every task ``num_samples_per_prompt`` times; the episodes of a task are its group."""
    size = config.num_samples_per_prompt
    repeated = [task for task in tasks for _ in range(size)]
    seeds = [
        episode_seed(config.seed, label, index // size, task.id, index % size)
        for index, task in enumerate(repeated)
    ]
    scored = play(repeated, seeds)
    require_valid(scored)
    return [
        _make_group(task, scored[start : start + size], config)
        for task, start in zip(tasks, range(0, len(repeated), size), strict=True)
    ]


def _make_group(
    task: Task, scored: Sequence[ScoredTrajectory], config: GRPOConfig
) -> TrajectoryGroup:
    rewards = tuple(episode.reward for episode in scored)
    return TrajectoryGroup(
        task=task,
        trajectories=tuple(episode.trajectory for episode in scored),
        rewards=rewards,
        training_rewards=tuple(training_reward(reward, config.reward) for reward in rewards),
    )


def _observe(loader: TaskDataLoader, groups: Sequence[TrajectoryGroup]) -> None:
    """Count successes per task for the ``weighted`` task strategy."""
    for group in groups:
        if group.task.domain in loader.domains:
            values = valid_rewards(group, [reward.value for reward in group.rewards])
            successes = sum(value >= SUCCESS for value in values)
            loader.observe(group.task, successes=successes, trials=len(values))


def _is_flat(group: TrajectoryGroup, config: GRPOConfig) -> bool:
    return not has_signal(compute_advantages(group, group.training_rewards, config))


def summarize(batch: Batch, *, num_flat: int) -> dict[str, float]:
    """Metrics of the episodes of one step; infrastructure errors are left out of rewards.

    ``reward_mean`` is the training reward; ``pass_rate`` counts successes, whatever the shaping.
    """
    groups = batch.groups
    rewards = [reward for g in groups for reward in valid_rewards(g, g.training_rewards)]
    values = [value for g in groups for value in valid_rewards(g, [r.value for r in g.rewards])]
    accuracies = [
        reward.tool_accuracy
        for group in groups
        for reward in group.rewards
        if reward.tool_accuracy is not None
    ]
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    lengths = [len(t.tokens.ids) for t in trajectories if t.tokens]
    outcomes = outcome_counts([t for t in trajectories if t.termination not in INFRASTRUCTURE])
    return {
        "reward_mean": fmean(rewards),
        "reward_max": max(rewards),
        "pass_rate": fmean(value >= SUCCESS for value in values),
        **({"tool_accuracy": fmean(accuracies)} if accuracies else {}),
        "zero_variance_groups": float(num_flat),
        "resampled_groups": float(batch.num_resampled),
        "infrastructure_errors": float(len(trajectories) - len(rewards)),
        **{name: float(count) for name, count in outcomes.items()},
        "groups": float(len(groups)),
        "episode_tokens": fmean(lengths) if lengths else 0.0,
        **_component_means(groups),
    }


def _component_means(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Mean of each reward component, in domains that reward each turn; keyed by the domain."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for group in groups:
        for reward in group.rewards:
            for component, value in reward.components.items() if reward.steps else ():
                values[f"{group.task.domain}/{component.lower()}"].append(value)
            for check in reward.answer_checks:
                values[f"{group.task.domain}/answers_{check.qtype}"].append(check.score)
    return {name: fmean(numbers) for name, numbers in sorted(values.items())}
