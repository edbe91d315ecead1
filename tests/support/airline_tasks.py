"""Generated airline tasks and functions that inspect them."""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from grpo_cl.envs import Domain, Environment, load_domain
from grpo_cl.types import StructuredInstructions, Task, ToolCall

MEMBERSHIPS = ("regular", "silver", "gold")
CABINS = ("basic_economy", "economy", "business")
WRITES = {
    "book_reservation",
    "cancel_reservation",
    "send_certificate",
    "update_reservation_baggages",
    "update_reservation_flights",
    "update_reservation_passengers",
}


@cache
def airline() -> Domain:
    return load_domain("airline")


@cache
def tasks(
    *, seed: int = 1, count: int = 150, split: str = "train", difficulty: float | None = None
) -> list[Task]:
    return airline().generate(seed=seed, count=count, split=split, difficulty=difficulty)


def new_environment(task: Task) -> Environment:
    return airline().environment(task)


def read_tool(environment: Environment, tool: str, **arguments: str) -> Any:
    result = environment.call(ToolCall(name=tool, arguments=dict(arguments)))
    assert not result.error, result.content
    return json.loads(result.content)


def write_calls(task: Task) -> list[ToolCall]:
    return [action.call for action in task.gold_actions if action.name in WRITES]


def customer(task: Task) -> str:
    assert task.gold_actions[0].name == "get_user_details"
    return str(task.gold_actions[0].arguments["user_id"])


def replay(environment: Environment, task: Task) -> Iterator[ToolCall]:
    """Yields each gold call just before it is executed."""
    for action in task.gold_actions:
        yield action.call
        result = environment.call(action.call)
        assert not result.error, (task.id, action.name, result.content)


def user_text(task: Task) -> str:
    instructions = task.user_scenario.instructions
    assert isinstance(instructions, StructuredInstructions)
    fields = (instructions.reason_for_call, instructions.known_info, instructions.task_instructions)
    return " ".join(field or "" for field in fields)


def free_bags(user: Any, reservation: Any) -> int:
    per_person = MEMBERSHIPS.index(user["membership"]) + CABINS.index(reservation["cabin"])
    return per_person * len(reservation["passengers"])


def statuses(environment: Environment, reservation: Any) -> set[str]:
    calls = [
        {"flight_number": flight["flight_number"], "date": flight["date"]}
        for flight in reservation["flights"]
    ]
    return {
        environment.call(ToolCall(name="get_flight_status", arguments=dict(call))).content
        for call in calls
    }
