"""Episodes that a failing endpoint ended, in a batch that an engine learns from.

SkyRL cannot leave an episode out of a group. Its tokens are taken out of the loss, and its reward
becomes the mean of the others, so that the group's mean is what it would be without it.
"""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any

Rewards = list[float] | float
"""Of one row: a number per token, or one."""


def leave_out(
    rewards: Sequence[Rewards],
    masks: Sequence[list[int]],
    *,
    groups: Sequence[Any],
    lost: Sequence[bool],
) -> tuple[list[Rewards], list[list[int]]]:
    """Rewards and loss masks in which the lost rows teach nothing and change no mean."""
    known: defaultdict[Any, list[float]] = defaultdict(list)
    for group, reward, is_lost in zip(groups, rewards, lost, strict=True):
        if not is_lost:
            known[group].append(_total(reward))
    new_rewards = [
        _placed(fmean(known[group] or [0.0]), reward) if is_lost else reward
        for group, reward, is_lost in zip(groups, rewards, lost, strict=True)
    ]
    new_masks = [
        [0] * len(mask) if is_lost else mask for mask, is_lost in zip(masks, lost, strict=True)
    ]
    return new_rewards, new_masks


def _total(reward: Rewards) -> float:
    return sum(reward) if isinstance(reward, list) else reward


def _placed(value: float, like: Rewards) -> Rewards:
    return [0.0] * (len(like) - 1) + [value] if isinstance(like, list) else value
