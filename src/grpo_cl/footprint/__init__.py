"""GPU memory of a run, told before it is started, from a model's config alone."""

from grpo_cl.footprint.advice import Change, changes, recipe
from grpo_cl.footprint.estimate import Estimate, estimate
from grpo_cl.footprint.plan import Lengths, Plan, read_plan
from grpo_cl.footprint.shape import Shape, known_shapes, read_shape

__all__ = [
    "Change",
    "Estimate",
    "Lengths",
    "Plan",
    "Shape",
    "changes",
    "estimate",
    "known_shapes",
    "read_plan",
    "read_shape",
    "recipe",
]
