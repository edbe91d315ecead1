"""Calls of airline demonstrations: what no record states is calculated before it is written.

The bags to pay for and the price of a booking follow from several records. A call of ``calculate``
shows how, and its result is in the context when the write needs it. A share of the bookings is
first tried with the fare of another cabin, which the tool refuses with the right price.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from inspect_evals.tau2.airline.data_model import (
    CabinClass,
    CreditCard,
    FlightDateStatusAvailable,
    FlightDB,
)

from grpo_cl.envs.airline.generator.index import BAG_FEE, CABINS, INSURANCE_FEE, free_bags
from grpo_cl.envs.calculator import calculate
from grpo_cl.types import ToolCall

REFUSED_SHARE = 0.15
"""Share of the bookings with one payment that a booking with a wrong fare precedes."""


class _Sum(NamedTuple):
    expression: str
    value: float


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
    fares = [_fare(database, flight, arguments["cabin"]) for flight in arguments["flights"]]
    payment = _last_payment(arguments, fares)
    if payment.value != arguments["payment_methods"][-1]["amount"]:
        return
    rng = Random(json.dumps(arguments))
    if len(arguments["payment_methods"]) == 1 and rng.random() < REFUSED_SHARE:
        refused = list(_refused_booking(database, arguments, fares, rng))
        yield from refused or [_calculation(payment.expression)]
    else:
        yield _calculation(payment.expression)


def _refused_booking(
    database: FlightDB, arguments: Mapping[str, Any], fares: Sequence[int], rng: Random
) -> Iterator[ToolCall]:
    """The booking with another cabin's fare of the last flight; none if a balance may not do."""
    others: list[CabinClass] = [cabin for cabin in CABINS if cabin != arguments["cabin"]]
    cabin = rng.choice(others)
    wrong = _last_payment(
        arguments, [*fares[:-1], _fare(database, arguments["flights"][-1], cabin)]
    )
    (payment,) = arguments["payment_methods"]
    method = database.users[arguments["user_id"]].payment_methods[payment["payment_id"]]
    if wrong.value < payment["amount"] or (
        isinstance(method, CreditCard) and wrong.value != payment["amount"]
    ):
        yield _calculation(wrong.expression)
        tried: dict[str, Any] = {
            **arguments,
            "payment_methods": [{**payment, "amount": int(wrong.value)}],
        }
        yield ToolCall(name="book_reservation", arguments=tried)


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


def _last_payment(arguments: Mapping[str, Any], fares: Sequence[int]) -> _Sum:
    """Insurance and fares of every passenger, plus bags, minus the payments before the last.

    Insurance is the first term, 0 if it is not wanted: a policy of 3 million weights did not learn
    to read it from the ticket where a term after the fares was there or not.
    """
    *earlier, _ = (payment["amount"] for payment in arguments["payment_methods"])
    insurance = INSURANCE_FEE if arguments["insurance"] == "yes" else 0
    bags, size = arguments["nonfree_baggages"], len(arguments["passengers"])
    expression = f"{insurance} * {size} + {size} * ({' + '.join(map(str, fares))})"
    expression += f" + {BAG_FEE} * {bags}" if bags else ""
    expression += "".join(f" - {amount}" for amount in earlier)
    return _Sum(expression, float(calculate(expression)))


def _fare(database: FlightDB, flight: Mapping[str, str], cabin: CabinClass) -> int:
    status = database.flights[flight["flight_number"]].dates[flight["date"]]
    return status.prices[cabin] if isinstance(status, FlightDateStatusAvailable) else 0


def _calculation(expression: str) -> ToolCall:
    return ToolCall(name="calculate", arguments={"expression": expression})
