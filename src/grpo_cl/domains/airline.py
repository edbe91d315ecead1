"""The airline domain of τ²-bench."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from inspect_evals.tau2.airline.AirlineAgentTools import AirlineAgentTools
from inspect_evals.tau2.airline.data_model import FlightDB
from inspect_evals.tau2.airline.tools import all_airline_tools
from typing_extensions import override

from grpo_cl.domains.base import ToolSchema
from grpo_cl.domains.generators.airline import task_maker
from grpo_cl.domains.generators.draft import TaskMaker
from grpo_cl.domains.overlay import EpisodeDatabase, SharedDatabase
from grpo_cl.domains.tau2 import Tau2Domain, Tau2Environment, parse_database
from grpo_cl.domains.toolkit import COMMON, adopt, schema

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


AirlineTools = adopt(
    AirlineAgentTools,
    name="AirlineTools",
    tools=[make.__name__ for make in all_airline_tools],
    writes=_WRITES,
    mends=COMMON,
)


class AirlineDomain(Tau2Domain):
    """Bookings, changes, cancellations and compensation under an airline's rules."""

    name = "airline"
    folder = "airline"
    can_generate = True

    @property
    @override
    def database(self) -> SharedDatabase:
        return _database()

    @property
    @override
    def agent_tools(self) -> Sequence[ToolSchema]:
        return _schemas()

    @override
    def world(
        self, agent: SharedDatabase, user_data: dict[str, Any] | None, *, solo: bool
    ) -> Tau2Environment:
        return Tau2Environment(AirlineTools(EpisodeDatabase(agent)), None, solo=solo)

    @override
    def task_maker(self, split: str) -> TaskMaker:
        model: Any = self.database.model
        return task_maker(model, split)
