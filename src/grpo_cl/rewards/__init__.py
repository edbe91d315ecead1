"""Rewards: τ²-bench's evaluation rules, and shaped rewards for training."""

from grpo_cl.rewards.oracle import EvaluationType, Judge, RewardOracle, ScoredTrajectory
from grpo_cl.rewards.shaping import (
    SHAPINGS,
    find_shaping,
    register_reward,
    shaped_reward,
    training_reward,
)

__all__ = [
    "SHAPINGS",
    "EvaluationType",
    "Judge",
    "RewardOracle",
    "ScoredTrajectory",
    "find_shaping",
    "register_reward",
    "shaped_reward",
    "training_reward",
]
