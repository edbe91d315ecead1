"""A run's schedule as files for other engines: stages, tasks per step, checkpoints, evaluations."""

from grpo_cl.integrations.plan.folder import (
    EngineRun,
    PlannedRun,
    planned_settings,
    read_plan,
    write_plan,
)
from grpo_cl.integrations.plan.records import Evaluation, Plan, Stage

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
