"""The airline domain of τ²-bench."""

from functools import cache

from inspect_evals.tau2.airline.AirlineAgentTools import AirlineAgentTools
from inspect_evals.tau2.airline.data_model import FlightDB
from inspect_evals.tau2.airline.tools import all_airline_tools
from typing_extensions import override

from grpo_cl.envs.airline.demonstrations import with_calculations
from grpo_cl.envs.airline.generator import task_maker
from grpo_cl.envs.airline.generator.scenario import write_varied_spec
from grpo_cl.envs.database import SharedDatabase
from grpo_cl.envs.generation.tasks import TaskMaker
from grpo_cl.envs.inspect_tools import INSPECT_ERRORS, schema
from grpo_cl.envs.tau2 import Side, Tau2Domain
from grpo_cl.envs.tau2_files import parse_database
from grpo_cl.envs.toolkit import COMMON_TOOLS, build_toolkit
from grpo_cl.types import Task, ToolCall, ToolSchema

_WRITES = (
    "book_reservation",
    "cancel_reservation",
    "send_certificate",
    "update_reservation_baggages",
    "update_reservation_flights",
    "update_reservation_passengers",
)


@cache
def _database() -> SharedDatabase:
    return SharedDatabase(FlightDB.model_validate(parse_database("airline")))


@cache
def _schemas() -> tuple[ToolSchema, ...]:
    return tuple(schema(make()) for make in all_airline_tools)


AirlineTools = build_toolkit(
    AirlineAgentTools,
    name="AirlineTools",
    tools=[make.__name__ for make in all_airline_tools],
    writes=_WRITES,
    overrides=COMMON_TOOLS,
    errors=INSPECT_ERRORS,
)


class AirlineDomain(Tau2Domain):
    """Bookings, changes, cancellations and compensation under an airline's rules."""

    name = "airline"
    folder = "airline"
    varied_release = "varied wording 2"
    can_generate = True
    agent_side = Side(toolkit=AirlineTools, schemas=_schemas, database=_database)

    @override
    def demonstration_calls(self, task: Task) -> list[ToolCall]:
        return list(with_calculations(self.database.model, super().demonstration_calls(task)))

    @override
    def task_maker(self, split: str) -> TaskMaker:
        return task_maker(self.database.model, split)

    @override
    def varied_task_maker(self, split: str) -> TaskMaker:
        return task_maker(self.database.model, split, write=write_varied_spec)
