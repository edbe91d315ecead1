"""Shaped rewards: denser signals than success, named, off by default, never used to evaluate."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from grpo_cl.config import RewardConfig
from grpo_cl.registry import pick
from grpo_cl.types import Reward, RewardType

Weights = Mapping[RewardType, float]


def progress(reward: Reward, weights: Weights) -> float:
    """Mean of how far each component of the basis got, of those that have something to check.

    It is 1 for a success and for nothing else: what it pays for is what the reward asks for.
    """
    del weights
    # Results of the reference say whether the databases are right, and not how far they are.
    known = (reward.agreement, reward.components.get(RewardType.DB))
    checks: dict[RewardType, Sequence[float]] = {
        RewardType.DB: [share for share in known if share is not None][:1],
        RewardType.ENV_ASSERTION: reward.env_assertions,
        RewardType.ACTION: [check.match for check in reward.action_checks],
        RewardType.COMMUNICATE: reward.communicate_checks,
        RewardType.NL_ASSERTION: reward.judgement.met if reward.judgement else (),
    }
    shares = [fmean(found) for part in reward.basis or () if (found := checks.get(part))]
    return fmean(shares) if shares else reward.value


def tool_accuracy(reward: Reward, weights: Weights) -> float:
    """Share of gold actions that were called with the right arguments."""
    del weights
    checks = reward.action_checks
    return sum(check.arguments_match for check in checks) / len(checks) if checks else reward.value


def weighted(reward: Reward, weights: Weights) -> float:
    """Mean of the judged components, weighted."""
    judged = {part: weights.get(part, 0.0) for part in reward.components}
    total = sum(judged.values())
    if not total:
        return reward.value
    return sum(weight * reward.components[part] for part, weight in judged.items()) / total


SHAPINGS: dict[str, Callable[[Reward, Weights], float]] = {
    "progress": progress,
    "tool_accuracy": tool_accuracy,
    "weighted": weighted,
}


def shaped(reward: Reward, name: str, weights: Weights) -> float:
    """The shaped value called ``name``; an episode that was cut short stays at zero."""
    shape = pick(SHAPINGS, name, "reward shaping")
    return 0.0 if reward.basis is None else shape(reward, weights)


def learned_value(reward: Reward, rule: RewardConfig) -> float:
    """What an episode is learned from: the mean of its steps, a shaped value, or the reward's."""
    if reward.steps:
        return fmean(step.value for step in reward.steps)
    return shaped(reward, rule.shaping, rule.weights) if rule.shaping else reward.value
