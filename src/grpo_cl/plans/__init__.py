"""A run written down for other engines: stages, the tasks of every step, checkpoints, measuring."""

from grpo_cl.plans.evaluation import Evaluation
from grpo_cl.plans.folder import EngineRun, PlannedRun, planned_settings, read_plan, write_plan
from grpo_cl.plans.plan import Plan, Stage

__all__ = [
    "EngineRun",
    "Evaluation",
    "Plan",
    "PlannedRun",
    "Stage",
    "planned_settings",
    "read_plan",
    "write_plan",
]
