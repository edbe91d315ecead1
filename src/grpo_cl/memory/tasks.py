"""Instances within tasks."""

from pydantic import ValidationError

from grpo_cl.errors import TaskDataError
from grpo_cl.memory.instances import Instance
from grpo_cl.types import InitializationData, InitialState, Task

INSTANCE = "instance"
"""Where a task holds its chunks and questions."""


def instance_of(task: Task) -> Instance:
    """The chunks and questions of a task."""
    initial = task.initial_state
    data = initial.initialization_data if initial else None
    try:
        return Instance.model_validate((data.agent_data or {})[INSTANCE] if data else None)
    except (KeyError, ValidationError) as error:
        raise TaskDataError(
            f"task {task.id!r} of domain {task.domain!r} holds no instance ({error}); "
            "only tasks of the memory domain do"
        ) from error


def initial_state(instance: Instance) -> InitialState:
    """Where a task keeps its instance."""
    data = InitializationData(agent_data={INSTANCE: instance.model_dump(mode="json")})
    return InitialState(initialization_data=data)
