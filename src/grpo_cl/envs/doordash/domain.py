"""The doordash domain: a food delivery service, with generated tasks."""

from functools import cache

from typing_extensions import override

from grpo_cl.envs.database import SharedDatabase
from grpo_cl.envs.doordash.database_builder import build_database
from grpo_cl.envs.doordash.generator import task_maker
from grpo_cl.envs.doordash.generator.scenario import write_varied_spec
from grpo_cl.envs.doordash.tools import SCHEMAS, DoordashTools
from grpo_cl.envs.generation.tasks import TaskMaker
from grpo_cl.envs.tau2 import GeneratedDomain, Side


@cache
def _database() -> SharedDatabase:
    return SharedDatabase(build_database())


class DoordashDomain(GeneratedDomain):
    """Customer service of a food delivery company: orders, cancellations and refunds."""

    name = "doordash"
    folder = "doordash"
    varied_release = "varied wording 2"
    task_seed = 2025
    agent_side = Side(toolkit=DoordashTools, schemas=lambda: SCHEMAS, database=_database)

    @override
    def task_maker(self, split: str) -> TaskMaker:
        return task_maker(self.database.model, split)

    @override
    def varied_task_maker(self, split: str) -> TaskMaker:
        return task_maker(self.database.model, split, write=write_varied_spec)
