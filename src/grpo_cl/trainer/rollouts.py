"""Groups to learn from: play tasks, score the episodes, and say what is learned from which."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

from grpo_cl.advantages import (
    action_advantages,
    group_advantages,
    known_rewards,
    step_advantages,
    terminal_rewards,
)
from grpo_cl.config import GRPOConfig
from grpo_cl.evaluation import Play, Score, episode_seed, require_told
from grpo_cl.rewards import learned_value
from grpo_cl.types import SUCCESS, Reward, Task, Trajectory, TrajectoryGroup

Credit = Sequence[float | Sequence[float] | None]
"""Of each episode of a group: one advantage, or one per turn; None where it says nothing."""


class Batch(NamedTuple):
    """What one step played."""

    groups: list[TrajectoryGroup]
    num_resampled: int


def collect(
    tasks: Sequence[Task], *, play: Play, score: Score, config: GRPOConfig, label: str
) -> list[TrajectoryGroup]:
    """Play every task ``num_samples_per_prompt`` times and score every episode."""
    size = config.num_samples_per_prompt
    attempts = [task for task in tasks for _ in range(size)]
    seeds = [
        episode_seed(config.seed, label, place // size, task.id, place % size)
        for place, task in enumerate(attempts)
    ]
    scored = score(play(attempts, seeds))
    require_told(scored)
    played = [one.trajectory for one in scored]
    rewards = [one.reward for one in scored]
    return [
        _group(task, played[start : start + size], rewards[start : start + size], config)
        for task, start in zip(tasks, range(0, len(attempts), size), strict=True)
    ]


def _group(
    task: Task, played: Sequence[Trajectory], rewards: Sequence[Reward], config: GRPOConfig
) -> TrajectoryGroup:
    return TrajectoryGroup(
        task=task,
        trajectories=tuple(played),
        rewards=tuple(rewards),
        training_rewards=tuple(learned_value(reward, config.reward) for reward in rewards),
    )


def collect_varied(
    tasks: Sequence[Task],
    more: Callable[[int], Sequence[Task]],
    collect_groups: Callable[[Sequence[Task], int], list[TrajectoryGroup]],
    config: GRPOConfig,
) -> Batch:
    """Groups of the tasks; those without variance are played again with others if so configured."""
    groups = collect_groups(tasks, 0)
    if config.loss.zero_variance == "skip":
        return Batch(groups, 0)
    resampled = 0
    for attempt in range(1, config.loss.max_resamples + 1):
        flat = [
            place
            for place, group in enumerate(groups)
            if not is_telling(credit(group, group.training_rewards, config))
        ]
        if not flat:
            break
        resampled += len(flat)
        for place, group in zip(flat, collect_groups(more(len(flat)), attempt), strict=True):
            groups[place] = group
    return Batch(groups, resampled)


def told_rewards(group: TrajectoryGroup, rewards: Sequence[float]) -> list[float]:
    """The rewards of the episodes that say something about the policy."""
    return [reward for reward in known_rewards(group, rewards) if reward is not None]


def is_telling(given: Credit) -> bool:
    """Whether any episode of a group, or any turn, is better or worse than its peers."""
    return any(any(one) if isinstance(one, Sequence) else one for one in given)


def step_rewards(
    group: TrajectoryGroup, rewards: Sequence[float]
) -> list[tuple[float, ...] | None]:
    """A reward for each reply of each episode, in a domain that rewards each of them.

    Whatever was added to the reward of an episode, by an algorithm, is added to all its steps; an
    episode that could not be scored has the same reward everywhere.
    """
    return [
        None if reward is None else _spread(reward, scored, trajectory)
        for reward, scored, trajectory in zip(
            known_rewards(group, rewards), group.rewards, group.trajectories, strict=True
        )
    ]


def _spread(reward: float, scored: Reward, trajectory: Trajectory) -> tuple[float, ...]:
    turns = len(trajectory.tokens.turns) if trajectory.tokens else len(scored.steps)
    if not scored.steps or len(scored.steps) != turns:
        return (reward,) * turns
    added = reward - fmean(step.value for step in scored.steps)
    return tuple(step.value + added for step in scored.steps)


def _is_stepwise(group: TrajectoryGroup) -> bool:
    return any(reward.steps for reward in group.rewards)


def credit(group: TrajectoryGroup, rewards: Sequence[float], config: GRPOConfig) -> Credit:
    """The advantages of a group's episodes."""
    if _is_stepwise(group):
        return step_advantages(step_rewards(group, rewards), config.loss.advantage)
    known = known_rewards(group, rewards)
    if not config.loss.per_action:
        return group_advantages(known, config.loss.advantage)
    turns = [
        len(trajectory.tokens.turns) if trajectory.tokens else 0
        for trajectory in group.trajectories
    ]
    rows = [
        None if reward is None else terminal_rewards(reward, count)
        for reward, count in zip(known, turns, strict=True)
    ]
    return action_advantages(rows, config.gamma)


def summary(batch: Batch, *, num_flat: int) -> dict[str, float]:
    """What to log of the episodes of one step; rewards only of those that tell something.

    ``reward_mean`` is what is learned from; ``pass_rate`` is success, whatever the shaping.
    """
    groups = batch.groups
    rewards = [reward for g in groups for reward in told_rewards(g, g.training_rewards)]
    values = [value for g in groups for value in told_rewards(g, [r.value for r in g.rewards])]
    num_played = sum(len(group.trajectories) for group in groups)
    accuracies = [
        reward.tool_accuracy
        for group in groups
        for reward in group.rewards
        if reward.tool_accuracy is not None
    ]
    lengths = [len(m.tokens.ids) for g in groups for m in g.trajectories if m.tokens]
    return {
        "reward_mean": fmean(rewards),
        "reward_max": max(rewards),
        "pass_rate": fmean(value >= SUCCESS for value in values),
        "tool_accuracy": fmean(accuracies) if accuracies else float("nan"),
        "zero_variance_groups": float(num_flat),
        "resampled_groups": float(batch.num_resampled),
        "infrastructure_errors": float(num_played - len(rewards)),
        "groups": float(len(groups)),
        "episode_tokens": fmean(lengths) if lengths else 0.0,
        **_memory_numbers([reward for group in groups for reward in group.rewards]),
    }


def _memory_numbers(rewards: Sequence[Reward]) -> dict[str, float]:
    """The parts of the rewards that are given step by step, each by itself."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for reward in rewards:
        for part, value in reward.components.items() if reward.steps else ():
            found[f"memory/{part.lower()}"].append(value)
        for check in reward.answer_checks:
            found[f"memory/answers_{check.qtype}"].append(check.score)
    return {name: fmean(values) for name, values in sorted(found.items())}
