"""Scoring: τ²-bench's own rules, and shaped rewards beside them."""

from grpo_cl.rewards.oracle import EvaluationType, Judge, RewardOracle, Scored
from grpo_cl.rewards.shaping import SHAPINGS, learned_value, shaped

__all__ = [
    "SHAPINGS",
    "EvaluationType",
    "Judge",
    "RewardOracle",
    "Scored",
    "learned_value",
    "shaped",
]
