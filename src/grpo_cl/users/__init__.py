"""User simulators by name."""

from collections.abc import Callable, Sequence

from grpo_cl.errors import ConfigError
from grpo_cl.registry import is_in_file, load_from_file, pick, register, with_plugins
from grpo_cl.types import Task, ToolSchema
from grpo_cl.users.base import User
from grpo_cl.users.llm.strategies import STRATEGIES
from grpo_cl.users.llm.user import LLMUserFactory
from grpo_cl.users.scripted.user import ScriptedUser

__all__ = [
    "SOLO",
    "STRATEGIES",
    "USERS",
    "LLMUserFactory",
    "make_user",
    "register_user",
    "require_user",
]

SOLO = "solo"
"""The strategy without a user: the agent works on a ticket."""

UserFactory = Callable[[Task, Sequence[ToolSchema]], User | None]


def _no_user(task: Task, user_tools: Sequence[ToolSchema]) -> None:
    """No user: the agent works on a ticket."""
    del task, user_tools


USERS: dict[str, UserFactory] = {
    "scripted": ScriptedUser,
    SOLO: _no_user,
}
"""Built-in users without a model; plug-ins are added through the entry points ``grpo_cl.users``.
Model-driven users are in ``STRATEGIES``."""

GROUP = "grpo_cl.users"
"""The entry point group of users of other packages."""


def register_user(name: str, factory: UserFactory) -> None:
    """Make a user simulator known to this process, as ``rollout.user=name``.

    ``factory`` makes the user of one episode from the task and the user's tools.
    """
    register(GROUP, name, factory, kind="user strategy", built_in={**USERS, **STRATEGIES})


def make_user(
    strategy: str,
    task: Task,
    user_tools: Sequence[ToolSchema],
    *,
    models: LLMUserFactory | None = None,
    seed: int = 0,
) -> User | None:
    """A user for one episode of ``task``; None in solo mode."""
    require_user(strategy)
    if strategy not in STRATEGIES:
        return _factory(strategy)(task, user_tools)
    if models is None:
        raise ConfigError(
            f"the user {strategy!r} is driven by a model; name it with user.model=PROVIDER/MODEL"
        )
    return models.make(STRATEGIES[strategy], task, user_tools, seed=seed)


def require_user(strategy: str) -> None:
    """Raise ``ConfigError`` for an unknown strategy."""
    if strategy not in STRATEGIES:
        _factory(strategy)


def _factory(strategy: str) -> UserFactory:
    if is_in_file(strategy):
        return load_from_file(strategy, "user strategy")
    known = with_plugins(USERS, GROUP)
    pick({**known, **STRATEGIES}, strategy, "user strategy")
    return known[strategy]
