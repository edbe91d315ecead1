"""The healthcare domain: tasks that its own generator makes, numbered once and for all."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from typing_extensions import override

from grpo_cl.domains.base import ToolSchema
from grpo_cl.domains.generators.draft import TaskMaker
from grpo_cl.domains.generators.healthcare import task_maker
from grpo_cl.domains.healthcare.builder import build_database
from grpo_cl.domains.healthcare.tools import HealthcareTools, tool_schemas
from grpo_cl.domains.numbered import NumberedDomain
from grpo_cl.domains.overlay import EpisodeDatabase, SharedDatabase
from grpo_cl.domains.tau2 import Tau2Environment


@cache
def _database() -> SharedDatabase:
    return SharedDatabase(build_database())


class HealthcareDomain(NumberedDomain):
    """Appointments, refills and contact details under the rules of a group of clinics."""

    name = "healthcare"
    folder = "healthcare"
    task_seed = 2026

    @property
    @override
    def database(self) -> SharedDatabase:
        return _database()

    @property
    @override
    def agent_tools(self) -> Sequence[ToolSchema]:
        return tool_schemas()

    @override
    def world(
        self, agent: SharedDatabase, user_data: dict[str, Any] | None, *, solo: bool
    ) -> Tau2Environment:
        return Tau2Environment(HealthcareTools(EpisodeDatabase(agent)), None, solo=solo)

    @override
    def task_maker(self, split: str) -> TaskMaker:
        return task_maker(build_database(), split)
