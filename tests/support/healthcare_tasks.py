"""Instructions, purpose and gold calls of generated healthcare tasks."""

from collections.abc import Sequence
from typing import Any

from grpo_cl.types import Action, StructuredInstructions, Task

WRITE_TOOLS = {
    "schedule_appointment",
    "reschedule_appointment",
    "cancel_appointment",
    "request_refill",
    "update_contact",
}


def writes(task: Task) -> list[Action]:
    return [action for action in task.gold_actions if action.name in WRITE_TOOLS]


def gold_arguments(tasks: Sequence[Task], name: str) -> list[dict[str, Any]]:
    return [dict(a.arguments) for task in tasks for a in task.gold_actions if a.name == name]


def instructions_of(task: Task) -> StructuredInstructions:
    instructions = task.user_scenario.instructions
    assert isinstance(instructions, StructuredInstructions)
    return instructions


def purpose(task: Task) -> str:
    assert task.description
    assert task.description.purpose
    return task.description.purpose
