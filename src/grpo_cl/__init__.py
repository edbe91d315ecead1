"""GRPO training and a continual-learning benchmark for tool-using language agents."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpo_cl.config import GRPOConfig
    from grpo_cl.rewards import RewardOracle
    from grpo_cl.tasks import TaskDataLoader

__all__ = ["GRPOConfig", "RewardOracle", "TaskDataLoader"]

_HOMES = {
    "GRPOConfig": "grpo_cl.config",
    "RewardOracle": "grpo_cl.rewards",
    "TaskDataLoader": "grpo_cl.tasks",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:  # each on first use, so that help and parsing stay fast
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
