"""Parts of generated retail tasks: customer, instructions and write actions."""

from typing import Any

from inspect_evals.tau2.retail.data_model import RetailDB, User

from grpo_cl.types import Action, StructuredInstructions, Task

READS = ("find_", "get_", "transfer_")


def writes(task: Task) -> list[Action]:
    return [action for action in task.gold_actions if not action.name.startswith(READS)]


def instructions_of(task: Task) -> StructuredInstructions:
    instructions = task.user_scenario.instructions
    assert isinstance(instructions, StructuredInstructions)
    return instructions


def customer(database: RetailDB, task: Task) -> User:
    arguments: Any = task.gold_actions[0].arguments
    if "email" in arguments:
        return next(user for user in database.users.values() if user.email == arguments["email"])
    identity = (arguments["first_name"], arguments["last_name"], arguments["zip"])
    return next(
        user
        for user in database.users.values()
        if (user.name.first_name, user.name.last_name, user.address.zip) == identity
    )
