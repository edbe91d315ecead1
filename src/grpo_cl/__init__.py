"""GRPO training and a continual-learning benchmark for tool-using language agents."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpo_cl.algorithms import CLAlgorithm, ReplayCL, SequentialCL
    from grpo_cl.buffer import TrajectoryBuffer
    from grpo_cl.config import GRPOConfig
    from grpo_cl.metrics.tracker import MetricsTracker
    from grpo_cl.policy.model import PolicyModel
    from grpo_cl.rewards import RewardOracle
    from grpo_cl.tasks import TaskDataLoader
    from grpo_cl.trainer import GRPOTrainer

__all__ = [
    "CLAlgorithm",
    "GRPOConfig",
    "GRPOTrainer",
    "MetricsTracker",
    "PolicyModel",
    "ReplayCL",
    "RewardOracle",
    "SequentialCL",
    "TaskDataLoader",
    "TrajectoryBuffer",
]

_HOMES = {
    "CLAlgorithm": "grpo_cl.algorithms",
    "GRPOConfig": "grpo_cl.config",
    "GRPOTrainer": "grpo_cl.trainer",
    "MetricsTracker": "grpo_cl.metrics.tracker",
    "PolicyModel": "grpo_cl.policy.model",
    "ReplayCL": "grpo_cl.algorithms",
    "RewardOracle": "grpo_cl.rewards",
    "SequentialCL": "grpo_cl.algorithms",
    "TaskDataLoader": "grpo_cl.tasks",
    "TrajectoryBuffer": "grpo_cl.buffer",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:  # each on first use, so that help and parsing stay fast
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
