"""The healthcare domain: patient service of a group of clinics, with generated tasks."""

from functools import cache

from typing_extensions import override

from grpo_cl.envs.database import SharedDatabase
from grpo_cl.envs.generation.tasks import TaskMaker
from grpo_cl.envs.healthcare.database_builder import build_database
from grpo_cl.envs.healthcare.generator import task_maker
from grpo_cl.envs.healthcare.generator.scenario import write_varied_spec
from grpo_cl.envs.healthcare.tools import HealthcareTools, tool_schemas
from grpo_cl.envs.tau2 import GeneratedDomain, Side


@cache
def _database() -> SharedDatabase:
    return SharedDatabase(build_database())


class HealthcareDomain(GeneratedDomain):
    """Appointments, refills and contact details under the rules of a group of clinics."""

    name = "healthcare"
    folder = "healthcare"
    varied_release = "varied wording 2"
    task_seed = 2026
    agent_side = Side(toolkit=HealthcareTools, schemas=tool_schemas, database=_database)

    @override
    def task_maker(self, split: str) -> TaskMaker:
        return task_maker(self.database.model, split)

    @override
    def varied_task_maker(self, split: str) -> TaskMaker:
        return task_maker(self.database.model, split, write=write_varied_spec)
