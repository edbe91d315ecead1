"""Reading generated retail tasks: who calls, what is told, what is written."""

from typing import Any

from inspect_evals.tau2.retail.data_model import RetailDB, User

from grpo_cl.types import Action, StructuredInstructions, Task

READS = ("find_", "get_", "transfer_")


def writes(task: Task) -> list[Action]:
    return [action for action in task.gold_actions if not action.name.startswith(READS)]


def story(task: Task) -> StructuredInstructions:
    instructions = task.user_scenario.instructions
    assert isinstance(instructions, StructuredInstructions)
    return instructions


def customer(database: RetailDB, task: Task) -> User:
    given: Any = task.gold_actions[0].arguments
    if "email" in given:
        return next(user for user in database.users.values() if user.email == given["email"])
    wanted = (given["first_name"], given["last_name"], given["zip"])
    return next(
        user
        for user in database.users.values()
        if (user.name.first_name, user.name.last_name, user.address.zip) == wanted
    )
