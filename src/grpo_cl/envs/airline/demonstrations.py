"""Calls of airline demonstrations: what no record states is calculated before it is written.

The bags to pay for and the price of a booking follow from several records. A call of ``calculate``
shows how, and its result is in the context when the write needs it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from inspect_evals.tau2.airline.data_model import CabinClass, FlightDateStatusAvailable, FlightDB

from grpo_cl.envs.airline.generator.index import BAG_FEE, INSURANCE_FEE, free_bags
from grpo_cl.envs.calculator import calculate
from grpo_cl.types import ToolCall


def with_calculations(database: FlightDB, calls: Sequence[ToolCall]) -> Iterator[ToolCall]:
    """The calls, with ``calculate`` before each booking and each change of bags.

    A calculation whose result the write does not have is left out.
    """
    cabins: dict[str, CabinClass] = {}
    """Of reservations whose cabin an earlier call changes."""
    for call in calls:
        if call.name == "book_reservation":
            yield from _booking_sums(database, call.arguments)
        elif call.name == "update_reservation_baggages":
            yield from _bag_sums(database, call.arguments, cabins)
        elif call.name == "update_reservation_flights":
            cabins |= _changed_cabin(call.arguments)
        yield call


def _changed_cabin(arguments: Mapping[str, Any]) -> dict[str, CabinClass]:
    return {arguments["reservation_id"]: arguments["cabin"]}


def _booking_sums(database: FlightDB, arguments: Mapping[str, Any]) -> Iterator[ToolCall]:
    free_each = free_bags(database.users[arguments["user_id"]], arguments["cabin"], 1)
    yield from _paid_bags(arguments, free_each, size=len(arguments["passengers"]))
    yield from _last_payment(database, arguments)


def _bag_sums(
    database: FlightDB, arguments: Mapping[str, Any], cabins: Mapping[str, CabinClass]
) -> Iterator[ToolCall]:
    booked = database.reservations.get(arguments["reservation_id"])
    if booked is None:
        return
    cabin = cabins.get(booked.reservation_id, booked.cabin)
    free_each = free_bags(database.users[booked.user_id], cabin, 1)
    yield from _paid_bags(arguments, free_each, size=len(booked.passengers))


def _paid_bags(arguments: Mapping[str, Any], free_each: int, *, size: int) -> Iterator[ToolCall]:
    """All bags minus the free ones; below zero if there are fewer than the allowance."""
    expression = f"{arguments['total_baggages']} - {free_each} * {size}"
    if max(0.0, float(calculate(expression))) == arguments["nonfree_baggages"]:
        yield _calculation(expression)


def _last_payment(database: FlightDB, arguments: Mapping[str, Any]) -> Iterator[ToolCall]:
    """Fares and insurance of every passenger, plus bags, minus the payments before the last."""
    *earlier, last = (payment["amount"] for payment in arguments["payment_methods"])
    each = [_fare(database, flight, arguments["cabin"]) for flight in arguments["flights"]]
    each += [INSURANCE_FEE] if arguments["insurance"] == "yes" else []
    bags = arguments["nonfree_baggages"]
    expression = f"{len(arguments['passengers'])} * ({' + '.join(map(str, each))})"
    expression += f" + {BAG_FEE} * {bags}" if bags else ""
    expression += "".join(f" - {amount}" for amount in earlier)
    if float(calculate(expression)) == last:
        yield _calculation(expression)


def _fare(database: FlightDB, flight: Mapping[str, str], cabin: CabinClass) -> int:
    status = database.flights[flight["flight_number"]].dates[flight["date"]]
    return status.prices[cabin] if isinstance(status, FlightDateStatusAvailable) else 0


def _calculation(expression: str) -> ToolCall:
    return ToolCall(name="calculate", arguments={"expression": expression})
