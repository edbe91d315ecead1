"""Users by name: who talks to the agent."""

from collections.abc import Callable, Sequence

from grpo_cl.domains.base import ToolSchema
from grpo_cl.errors import ConfigError
from grpo_cl.registry import pick, with_plugins
from grpo_cl.types import Task
from grpo_cl.users.base import User
from grpo_cl.users.llm import STRATEGIES, ModelUsers
from grpo_cl.users.scripted import ScriptedUser

__all__ = ["STRATEGIES", "USERS", "ModelUsers", "make_user", "require_user"]


def _nobody(task: Task, user_tools: Sequence[ToolSchema]) -> None:
    del task, user_tools


USERS: dict[str, Callable[[Task, Sequence[ToolSchema]], User | None]] = {
    "scripted": ScriptedUser,
    "solo": _nobody,
}
"""The users of this package that need no model; others join through the entry points
``grpo_cl.users``. Those that a model plays are in ``STRATEGIES``."""


def make_user(
    strategy: str,
    task: Task,
    user_tools: Sequence[ToolSchema],
    *,
    models: ModelUsers | None = None,
    seed: int = 0,
) -> User | None:
    """A user for one episode of ``task``; None where the agent works alone."""
    require_user(strategy)
    if strategy not in STRATEGIES:
        return with_plugins(USERS, "grpo_cl.users")[strategy](task, user_tools)
    if models is None:
        raise ConfigError(
            f"the user {strategy!r} is played by a model; name it with user.model=PROVIDER/MODEL"
        )
    return models.make(STRATEGIES[strategy], task, user_tools, seed=seed)


def require_user(strategy: str) -> None:
    """Refuse a strategy that does not exist."""
    pick({**with_plugins(USERS, "grpo_cl.users"), **STRATEGIES}, strategy, "user strategy")
