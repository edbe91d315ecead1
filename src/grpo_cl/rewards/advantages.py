"""Group-relative advantages of episodes and of single actions.

Formulas in docs/grpo.md. A reward of None marks an infrastructure failure: it is excluded from
every baseline and its advantage is None, so that the episode is left out of the update and does not
count as average.
"""

import math
from collections.abc import Sequence
from itertools import compress, zip_longest
from statistics import fmean
from typing import Literal, overload

from grpo_cl.config import GRPOConfig
from grpo_cl.types import Reward, Termination, TokenTrace, Trajectory, TrajectoryGroup

Baseline = Literal["mean", "std", "leave_one_out"]

Advantage = float | Sequence[float] | None
"""Of one episode: one number, or one per turn; None after an infrastructure error."""
GroupAdvantages = Sequence[Advantage]
"""One entry per episode of a group."""

TOLERANCE = 1e-6
"""Rewards within this tolerance are equal; the difference is rounding error."""

INFRASTRUCTURE = frozenset({Termination.INFRASTRUCTURE_ERROR, Termination.UNEXPECTED_ERROR})
"""Terminations not caused by the policy; such an episode is excluded from baselines."""


def masked_rewards(group: TrajectoryGroup, rewards: Sequence[float]) -> list[float | None]:
    """The rewards, with None for episodes that ended by an infrastructure failure."""
    return [
        None if trajectory.termination in INFRASTRUCTURE else reward
        for trajectory, reward in zip(group.trajectories, rewards, strict=True)
    ]


@overload
def group_advantages(rewards: Sequence[float], kind: Baseline) -> tuple[float, ...]: ...
@overload
def group_advantages(
    rewards: Sequence[float | None], kind: Baseline
) -> tuple[float | None, ...]: ...
def group_advantages(rewards: Sequence[float | None], kind: Baseline) -> tuple[float | None, ...]:
    """The advantage of each episode in its group; exactly 0 if all rewards are equal."""
    valid = _valid(rewards)
    if not has_variance(valid):
        return tuple(None if reward is None else 0.0 for reward in rewards)
    mean = math.fsum(valid) / len(valid)
    scale = 1.0
    if kind == "std":
        scale = 1 / (_population_std(valid, mean) + TOLERANCE)
    elif kind == "leave_one_out":
        # r - mean of the others = (r - mean of all) · n / (n - 1); variance needs n >= 2.
        scale = len(valid) / (len(valid) - 1)
    return tuple(None if reward is None else (reward - mean) * scale for reward in rewards)


def has_variance(rewards: Sequence[float | None]) -> bool:
    """Whether the rewards that are not None differ, so that the group has a gradient."""
    valid = _valid(rewards)
    return bool(valid) and max(valid) - min(valid) > TOLERANCE


def terminal_rewards(reward: float, num_actions: int) -> tuple[float, ...]:
    """An episode's reward as rewards per action: all of it at the last action."""
    return (0.0,) * (num_actions - 1) + (reward,) if num_actions else ()


def returns_to_go(rewards: Sequence[float], gamma: float) -> tuple[float, ...]:
    """For each action the discounted sum of its reward and the rewards after it."""
    returns: list[float] = []
    future = 0.0
    for reward in reversed(rewards):
        future = reward + gamma * future
        returns.append(future)
    return tuple(reversed(returns))


@overload
def action_advantages(
    rewards_per_action: Sequence[Sequence[float]], gamma: float
) -> tuple[tuple[float, ...], ...]: ...
@overload
def action_advantages(
    rewards_per_action: Sequence[Sequence[float] | None], gamma: float
) -> tuple[tuple[float, ...] | None, ...]: ...
def action_advantages(
    rewards_per_action: Sequence[Sequence[float] | None], gamma: float
) -> tuple[tuple[float, ...] | None, ...]:
    """Each action's return-to-go minus the group's mean for the same action index.

    An index that only one episode reaches has advantage 0.
    """
    returns = [None if row is None else returns_to_go(row, gamma) for row in rewards_per_action]
    return step_advantages(returns, "mean")


def step_advantages(
    rewards_per_step: Sequence[Sequence[float] | None], kind: Baseline
) -> tuple[tuple[float, ...] | None, ...]:
    """Each step's reward relative to the group's baseline for the same step index.

    The baseline per index removes differences in difficulty between steps. An index that only one
    episode reaches has advantage 0.
    """
    valid = [row for row in rewards_per_step if row is not None]
    # Column t holds None for episodes that ended before their t-th step.
    columns = [group_advantages(column, kind) for column in zip_longest(*valid)]
    rows = iter(range(len(valid)))
    return tuple(
        None if row is None else _row(columns, next(rows), len(row)) for row in rewards_per_step
    )


def token_advantages(trace: TokenTrace, advantages: float | Sequence[float]) -> tuple[float, ...]:
    """An advantage per episode or per turn as one value per sampled token, as log-probs are."""
    if isinstance(advantages, int | float):
        return (advantages,) * trace.mask.count(True)
    if len(advantages) != len(trace.turns):
        raise ValueError(
            f"{len(advantages)} advantages for {len(trace.turns)} turns; "
            "give one per turn, or a single number for the whole episode"
        )
    tokens = [0.0] * len(trace.ids)
    for (start, end), advantage in zip(trace.turns, advantages, strict=True):
        tokens[start:end] = [advantage] * (end - start)
    return tuple(compress(tokens, trace.mask))


def _valid(rewards: Sequence[float | None]) -> list[float]:
    valid = [reward for reward in rewards if reward is not None]
    for reward in valid:
        if not math.isfinite(reward):
            raise ValueError(
                f"reward {reward} is not finite; score an episode that has no reward as None"
            )
    return valid


def _population_std(values: Sequence[float], mean: float) -> float:
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


def _row(columns: Sequence[Sequence[float | None]], row: int, length: int) -> tuple[float, ...]:
    values = [column[row] for column in columns[:length]]
    return tuple(value for value in values if value is not None)


def compute_advantages(
    group: TrajectoryGroup, rewards: Sequence[float], config: GRPOConfig
) -> GroupAdvantages:
    """Advantages of a group's episodes, as ``config.loss`` and ``config.gamma`` define them.

    ``rewards`` are the training rewards of the episodes after an algorithm's shaping.
    """
    if any(reward.steps for reward in group.rewards):
        return step_advantages(step_rewards(group, rewards), config.loss.advantage)
    masked = masked_rewards(group, rewards)
    if not config.loss.per_action:
        return group_advantages(masked, config.loss.advantage)
    rows = [
        None if reward is None else terminal_rewards(reward, _num_turns(trajectory))
        for reward, trajectory in zip(masked, group.trajectories, strict=True)
    ]
    return action_advantages(rows, config.gamma)


def has_signal(advantages: Advantage | GroupAdvantages) -> bool:
    """Whether any advantage of an episode or a group differs from zero."""
    if isinstance(advantages, Sequence):
        return any(has_signal(advantage) for advantage in advantages)
    return bool(advantages)


def valid_rewards(group: TrajectoryGroup, rewards: Sequence[float]) -> list[float]:
    """The rewards of the episodes that did not end with an infrastructure error."""
    return [reward for reward in masked_rewards(group, rewards) if reward is not None]


def step_rewards(
    group: TrajectoryGroup, rewards: Sequence[float]
) -> list[tuple[float, ...] | None]:
    """One reward per turn of each episode, in a domain that rewards each turn.

    What an algorithm adds to the reward of an episode is added to each of its turns. An episode
    without rewards per turn has its reward at each turn.
    """
    return [
        None if reward is None else _turn_rewards(reward, scored, trajectory)
        for reward, scored, trajectory in zip(
            masked_rewards(group, rewards), group.rewards, group.trajectories, strict=True
        )
    ]


def _turn_rewards(reward: float, scored: Reward, trajectory: Trajectory) -> tuple[float, ...]:
    num_turns = _num_turns(trajectory) if trajectory.tokens else len(scored.steps)
    if not scored.steps or len(scored.steps) != num_turns:
        return (reward,) * num_turns
    added = reward - fmean(step.value for step in scored.steps)
    return tuple(step.value + added for step in scored.steps)


def _num_turns(trajectory: Trajectory) -> int:
    return len(trajectory.tokens.turns) if trajectory.tokens else 0
