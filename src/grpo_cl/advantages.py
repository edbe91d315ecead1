"""Credit within a group: how much better an episode, or one action of it, was than its peers.

Formulas in docs/grpo.md. A reward of None is an outcome that says nothing about the policy (an
infrastructure failure): it is no part of any baseline and its advantage is None, so that the
episode has to be left out of the update instead of counting as average.
"""

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Literal, overload

from grpo_cl.types import Termination, TokenTrace, TrajectoryGroup

Baseline = Literal["mean", "std", "leave_one_out"]

TOLERANCE = 1e-6
"""Rewards that differ by no more than this are equal; their difference is rounding."""

INFRASTRUCTURE = frozenset({Termination.INFRASTRUCTURE_ERROR, Termination.UNEXPECTED_ERROR})
"""Endings that are not the policy's doing; such an episode is in no baseline."""


def known_rewards(group: TrajectoryGroup, rewards: Sequence[float]) -> list[float | None]:
    """The rewards that say something about the policy, None for the others."""
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
    """Each episode's advantage over its group; exact zeros where all rewards are equal."""
    known = _known(rewards)
    if not has_variance(known):
        return tuple(None if reward is None else 0.0 for reward in rewards)
    mean = math.fsum(known) / len(known)
    scale = 1.0
    if kind == "std":
        scale = 1 / (_population_std(known, mean) + TOLERANCE)
    elif kind == "leave_one_out":
        # r - mean of the others = (r - mean of all) · n / (n - 1); variance needs n >= 2.
        scale = len(known) / (len(known) - 1)
    return tuple(None if reward is None else (reward - mean) * scale for reward in rewards)


def has_variance(rewards: Sequence[float | None]) -> bool:
    """Whether a group teaches anything: its known rewards are not all equal."""
    known = _known(rewards)
    return bool(known) and max(known) - min(known) > TOLERANCE


def terminal_rewards(reward: float, num_actions: int) -> tuple[float, ...]:
    """An episode's reward as rewards per action: all of it after the last."""
    return (0.0,) * (num_actions - 1) + (reward,) if num_actions else ()


def returns_to_go(rewards: Sequence[float], gamma: float) -> tuple[float, ...]:
    """For each action the discounted sum of its reward and those that follow."""
    returns: list[float] = []
    following = 0.0
    for reward in reversed(rewards):
        following = reward + gamma * following
        returns.append(following)
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
    """Each action's return-to-go over the mean of the group's actions with the same index.

    An index that only one episode reaches has no peers and gets 0.
    """
    returns = [None if row is None else returns_to_go(row, gamma) for row in rewards_per_action]
    return step_advantages(returns, "mean")


def step_advantages(
    rewards_per_step: Sequence[Sequence[float] | None], kind: Baseline
) -> tuple[tuple[float, ...] | None, ...]:
    """Each step's reward over the group's baseline for the same step.

    What all steps at one place have in common, easy or hard, says nothing about any of them. A step
    that only one episode reaches has no peers and gets 0.
    """
    played = [row for row in rewards_per_step if row is not None]
    # Column t holds None for episodes that ended before their t-th step.
    columns = [group_advantages(column, kind) for column in zip_longest(*played)]
    rows = iter(range(len(played)))
    return tuple(
        None if row is None else _row(columns, next(rows), len(row)) for row in rewards_per_step
    )


def token_advantages(trace: TokenTrace, advantages: float | Sequence[float]) -> tuple[float, ...]:
    """An episode's advantage, or one per turn, as one number per token; 0 off the mask."""
    if isinstance(advantages, int | float):
        return tuple(_under(trace.mask, advantages))
    if len(advantages) != len(trace.turns):
        raise ValueError(
            f"{len(advantages)} advantages for {len(trace.turns)} turns; "
            "give one per turn, or a single number for the whole episode"
        )
    tokens = [0.0] * len(trace.ids)
    for (start, end), advantage in zip(trace.turns, advantages, strict=True):
        tokens[start:end] = _under(trace.mask[start:end], advantage)
    return tuple(tokens)


def _under(mask: Sequence[bool], value: float) -> list[float]:
    """The value where the mask is true, 0 elsewhere."""
    return [value if masked else 0.0 for masked in mask]


def _known(rewards: Sequence[float | None]) -> list[float]:
    known = [reward for reward in rewards if reward is not None]
    for reward in known:
        if not math.isfinite(reward):
            raise ValueError(
                f"reward {reward} is not finite; score an episode that has no reward as None"
            )
    return known


def _population_std(values: Sequence[float], mean: float) -> float:
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


def _row(columns: Sequence[Sequence[float | None]], row: int, length: int) -> tuple[float, ...]:
    values = [column[row] for column in columns[:length]]
    return tuple(value for value in values if value is not None)
