"""GRPO training and a continual-learning benchmark for tool-using language agents."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpo_cl.algorithms import CLAlgorithm, ReplayCL, SequentialCL, register_algorithm
    from grpo_cl.config import GRPOConfig
    from grpo_cl.envs import register_domain
    from grpo_cl.envs.tasks import TaskDataLoader
    from grpo_cl.metrics.metrics_tracker import MetricsTracker
    from grpo_cl.policy.model.policy_model import PolicyModel
    from grpo_cl.rewards import RewardOracle, register_reward
    from grpo_cl.runs.trajectory_buffer import TrajectoryBuffer
    from grpo_cl.trainer import GRPOTrainer
    from grpo_cl.users import register_user

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
    "register_algorithm",
    "register_domain",
    "register_reward",
    "register_user",
]

_HOMES = {
    "CLAlgorithm": "grpo_cl.algorithms",
    "GRPOConfig": "grpo_cl.config",
    "GRPOTrainer": "grpo_cl.trainer",
    "MetricsTracker": "grpo_cl.metrics.metrics_tracker",
    "PolicyModel": "grpo_cl.policy.model.policy_model",
    "ReplayCL": "grpo_cl.algorithms",
    "RewardOracle": "grpo_cl.rewards",
    "SequentialCL": "grpo_cl.algorithms",
    "TaskDataLoader": "grpo_cl.envs.tasks",
    "TrajectoryBuffer": "grpo_cl.runs.trajectory_buffer",
    "register_algorithm": "grpo_cl.algorithms",
    "register_domain": "grpo_cl.envs",
    "register_reward": "grpo_cl.rewards",
    "register_user": "grpo_cl.users",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:  # each on first use, so that help and parsing stay fast
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
