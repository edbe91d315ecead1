"""The doordash domain: its world, its policy and its own tasks."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from typing_extensions import override

from grpo_cl.domains.base import ToolSchema
from grpo_cl.domains.doordash.database import DoordashDB
from grpo_cl.domains.doordash.seed import build_database
from grpo_cl.domains.doordash.tools import SCHEMAS, DoordashTools
from grpo_cl.domains.generators.doordash import task_maker
from grpo_cl.domains.generators.draft import TaskMaker
from grpo_cl.domains.numbered import NumberedDomain
from grpo_cl.domains.overlay import EpisodeDatabase, SharedDatabase
from grpo_cl.domains.tau2 import Tau2Environment


@cache
def _database() -> SharedDatabase:
    return SharedDatabase(build_database())


class DoordashDomain(NumberedDomain):
    """Orders, changes, cancellations and refunds of a food delivery service."""

    name = "doordash"
    folder = "doordash"
    task_seed = 2025

    @property
    @override
    def database(self) -> SharedDatabase:
        return _database()

    @property
    @override
    def agent_tools(self) -> Sequence[ToolSchema]:
        return SCHEMAS

    @override
    def world(
        self, agent: SharedDatabase, user_data: dict[str, Any] | None, *, solo: bool
    ) -> Tau2Environment:
        return Tau2Environment(DoordashTools(EpisodeDatabase(agent)), None, solo=solo)

    @override
    def task_maker(self, split: str) -> TaskMaker:
        model = self.database.model
        assert isinstance(model, DoordashDB)
        return task_maker(model, split)
