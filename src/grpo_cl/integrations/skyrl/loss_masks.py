"""Masks failed episodes in a training batch.

SkyRL cannot drop an episode from its group. If an endpoint failure ended an episode, its tokens are
masked from the loss and its reward is set to the mean of the others, which keeps the group's mean.
"""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any

Rewards = list[float] | float
"""Rewards of one row: one per token, or one for the episode."""


def mask_failed_episodes(
    rewards: Sequence[Rewards],
    masks: Sequence[list[int]],
    *,
    groups: Sequence[Any],
    failed: Sequence[bool],
) -> tuple[list[Rewards], list[list[int]]]:
    """Rewards and loss masks in which failed rows have no loss and do not change group means."""
    group_rewards: defaultdict[Any, list[float]] = defaultdict(list)
    for group, reward, is_failed in zip(groups, rewards, failed, strict=True):
        if not is_failed:
            group_rewards[group].append(_total(reward))
    new_rewards = [
        _reward_like(fmean(group_rewards[group] or [0.0]), reward) if is_failed else reward
        for group, reward, is_failed in zip(groups, rewards, failed, strict=True)
    ]
    new_masks = [
        [0] * len(mask) if is_failed else mask
        for mask, is_failed in zip(masks, failed, strict=True)
    ]
    return new_rewards, new_masks


def _total(reward: Rewards) -> float:
    return sum(reward) if isinstance(reward, list) else reward


def _reward_like(value: float, like: Rewards) -> Rewards:
    return [0.0] * (len(like) - 1) + [value] if isinstance(like, list) else value
