"""Estimates a run's GPU memory before it starts, from the model's ``config.json`` alone."""

from grpo_cl.gpu_memory.estimate import (
    Change,
    MemoryEstimate,
    estimate,
    find_fit,
    suggest_changes,
)
from grpo_cl.gpu_memory.prompts import EpisodeLengths, measure_episodes
from grpo_cl.gpu_memory.servers import (
    ServerPlan,
    fewest_gpus_of_full_training,
    full_training,
    plan_servers,
)
from grpo_cl.gpu_memory.shape import ModelShape, known_shapes, read_shape
from grpo_cl.gpu_memory.workload import Lengths, Workload, read_workload

__all__ = [
    "Change",
    "EpisodeLengths",
    "Lengths",
    "MemoryEstimate",
    "ModelShape",
    "ServerPlan",
    "Workload",
    "estimate",
    "fewest_gpus_of_full_training",
    "find_fit",
    "full_training",
    "known_shapes",
    "measure_episodes",
    "plan_servers",
    "read_shape",
    "read_workload",
    "suggest_changes",
]
