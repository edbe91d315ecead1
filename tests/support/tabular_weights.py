"""The weight matrix of the tabular policy, options by features, and matrices of its shape."""

from pathlib import Path

import torch

from grpo_cl.envs.toy.domain import OPTIONS, signal_names
from grpo_cl.policy.learner.learner import Learner
from grpo_cl.policy.runtime import PolicyRuntime
from toy_runs import toy_config

NAME = "model.choice.weight"
RATE = 0.2
SHAPE = NUM_OPTIONS, NUM_FEATURES = len(OPTIONS), 1 + len(signal_names())
FIRST, SECOND, IMPORTANCE, CURVATURE = torch.rand(
    4, *SHAPE, generator=torch.Generator().manual_seed(0)
)


def tabular_learner(folder: Path) -> Learner:
    """The learner of a policy with zero weights."""
    return PolicyRuntime(toy_config(folder, learning_rate=RATE)).learner
