"""Shaped rewards: denser training signals than success; off by default, not used in evaluation."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from grpo_cl.config import RewardConfig
from grpo_cl.registry import is_in_file, load_from_file, pick, register, with_plugins
from grpo_cl.types import Reward, RewardType

Weights = Mapping[RewardType, float]


def progress(reward: Reward, weights: Weights) -> float:
    """Mean partial score over the components of the basis that have something to check.

    It is 1 if and only if the reward is 1.
    """
    del weights
    # Imported τ² results have the DB component but no agreement.
    db_scores = (reward.agreement, reward.components.get(RewardType.DB))
    checks: dict[RewardType, Sequence[float]] = {
        RewardType.DB: [score for score in db_scores if score is not None][:1],
        RewardType.ENV_ASSERTION: reward.env_assertions,
        RewardType.ACTION: [check.match for check in reward.action_checks],
        RewardType.COMMUNICATE: reward.communicate_checks,
        RewardType.NL_ASSERTION: reward.judgement.met if reward.judgement else (),
    }
    scores = [fmean(values) for part in reward.basis or () if (values := checks.get(part))]
    return fmean(scores) if scores else reward.value


def tool_accuracy(reward: Reward, weights: Weights) -> float:
    """Fraction of gold actions that were called with the right arguments."""
    del weights
    checks = reward.action_checks
    return sum(check.arguments_match for check in checks) / len(checks) if checks else reward.value


def weighted(reward: Reward, weights: Weights) -> float:
    """Weighted mean of the evaluated components."""
    part_weights = {part: weights.get(part, 0.0) for part in reward.components}
    total = sum(part_weights.values())
    if not total:
        return reward.value
    return sum(weight * reward.components[part] for part, weight in part_weights.items()) / total


Shaping = Callable[[Reward, Weights], float]
"""The training reward of an episode, from its reward and ``reward.weights``."""

SHAPINGS: dict[str, Shaping] = {
    "progress": progress,
    "tool_accuracy": tool_accuracy,
    "weighted": weighted,
}


GROUP = "grpo_cl.rewards"
"""The entry point group of shaped rewards of other packages."""


def register_reward(name: str, shaping: Shaping) -> None:
    """Make a shaped reward known to this process, as ``reward.shaping=name``."""
    register(GROUP, name, shaping, kind="reward shaping", built_in=SHAPINGS)


def find_shaping(name: str) -> Shaping:
    """A shaped reward: built-in, registered in code, an entry point, or FILE.py:FUNCTION."""
    if is_in_file(name):
        return load_from_file(name, "reward shaping")
    return pick(with_plugins(SHAPINGS, GROUP), name, "reward shaping")


def shaped_reward(reward: Reward, name: str, weights: Weights) -> float:
    """The shaped reward called ``name``; 0 for an episode that did not end with a stop."""
    shape = find_shaping(name)
    return 0.0 if reward.basis is None else shape(reward, weights)


def training_reward(reward: Reward, rule: RewardConfig) -> float:
    """The training reward: the mean step reward, a shaped reward, or the reward's value."""
    if reward.steps:
        return fmean(step.value for step in reward.steps)
    return shaped_reward(reward, rule.shaping, rule.weights) if rule.shaping else reward.value
