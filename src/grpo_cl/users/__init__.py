"""Users by name: who talks to the agent."""

from collections.abc import Callable, Sequence

from grpo_cl.domains.base import ToolSchema
from grpo_cl.registry import pick, with_plugins
from grpo_cl.types import Task
from grpo_cl.users.base import User
from grpo_cl.users.scripted import ScriptedUser


def _nobody(task: Task, user_tools: Sequence[ToolSchema]) -> None:
    del task, user_tools


USERS: dict[str, Callable[[Task, Sequence[ToolSchema]], User | None]] = {
    "scripted": ScriptedUser,
    "solo": _nobody,
}
"""The strategies of this package; others join through the entry points ``grpo_cl.users``."""


def make_user(strategy: str, task: Task, user_tools: Sequence[ToolSchema]) -> User | None:
    """A user for one episode of ``task``; None where the agent works alone."""
    return pick(with_plugins(USERS, "grpo_cl.users"), strategy, "user strategy")(task, user_tools)
