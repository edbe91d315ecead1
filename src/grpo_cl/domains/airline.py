"""The airline domain of τ²-bench."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from inspect_evals.tau2.airline.AirlineAgentTools import AirlineAgentTools
from inspect_evals.tau2.airline.data_model import FlightDB
from inspect_evals.tau2.airline.tools import all_airline_tools
from typing_extensions import override

from grpo_cl.domains.base import ToolSchema
from grpo_cl.domains.generators import airline as generator
from grpo_cl.domains.overlay import SharedDatabase
from grpo_cl.domains.tau2 import Tau2Domain, Tau2Environment, fork, parse_database
from grpo_cl.domains.toolkit import COMMON, adopt, schema
from grpo_cl.types import Task

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
        return Tau2Environment(AirlineTools(fork(agent)), None, solo=solo)

    @override
    def generate(
        self, *, seed: int, count: int, split: str = "train", difficulty: float | None = None
    ) -> list[Task]:
        model: Any = self.database.model
        return generator.generate(
            model, seed=seed, count=count, split=split, difficulty=difficulty
        )
