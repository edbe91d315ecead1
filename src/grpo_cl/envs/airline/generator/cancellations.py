"""Allowed requests for cancellations and compensation."""

from collections.abc import Sequence

from grpo_cl.envs.airline.generator.case import AirlineCase, AirlineRequest
from grpo_cl.envs.airline.generator.index import Trip, deserves_compensation
from grpo_cl.envs.generation.requests import Call

COVERED = (
    "$you $are too ill to fly",
    "a doctor has told $you not to fly for health reasons",
    "$you broke a leg and cannot travel",
    "severe storms are forecast on the day of departure",
    "there is a hurricane warning for the destination",
)
"""Reasons that travel insurance covers."""

NOT_COVERED = (
    "$your plans have changed",
    "a meeting was moved to another week",
    "$you found a cheaper way to travel",
    "the event $you wanted to attend was called off",
    "$you would rather stay at home",
)

CANCELLED_RATE = 100
DELAYED_RATE = 50
"""Compensation in dollars per passenger."""


def cancel(case: AirlineCase) -> AirlineRequest | None:
    """Cancel a trip for a reason that the policy accepts."""
    trips = [
        trip
        for trip in case.free_trips
        if trip.is_free_to_cancel or (trip.is_ahead and trip.is_insured)
    ]
    trip = case.pick(trips)
    if trip is None:
        return None
    trip_name = case.name_trip(trip)
    reason = case.rng.choice(_valid_reasons(trip))
    asks = (
        f"$you want$s to cancel {trip_name} because {reason}",
        f"$you need$s {trip_name} cancelled, as {reason}",
        f"$you would like to cancel {trip_name}, since {reason}",
    )
    question = case.maybe_ask(trip.paid, "the total refund")
    return AirlineRequest(
        kind="cancel",
        facts={"reason": reason},
        label=f"the cancellation of {trip_name}",
        ask=case.rng.choice(asks),
        details=("the refund goes back the way it was paid", *question.words),
        writes=[_cancellation(trip)],
        trip=trip,
        answer=question.answer,
    )


def compensate(case: AirlineCase) -> AirlineRequest | None:
    """Ask for a certificate for flights that the airline cancelled."""
    trips = [trip for trip in _compensable(case, case.free_trips) if "cancelled" in trip.statuses]
    trip = case.pick(trips)
    if trip is None:
        return None
    trip_name = case.name_trip(trip)
    asks = (
        f"$you complain$s that the airline cancelled a flight of {trip_name} "
        "and ask$s for compensation",
        f"$you want$s compensation because a flight of {trip_name} was cancelled by the airline",
        f"$you ask$s what the airline offers $you for a cancelled flight of {trip_name} "
        "and want$s to be compensated",
    )
    return AirlineRequest(
        kind="compensation",
        label=f"the compensation for {trip_name}",
        ask=case.rng.choice(asks),
        details=("a travel certificate is welcome and the reservation itself stays as it is",),
        reads=status_checks(trip, "cancelled"),
        writes=[_certificate(case, CANCELLED_RATE * trip.size)],
        trip=trip,
    )


def cancel_and_compensate(case: AirlineCase) -> AirlineRequest | None:
    """Cancel a trip with a cancelled or delayed flight, then ask for compensation."""
    trips = [trip for trip in _compensable(case, case.free_trips) if trip.is_free_to_cancel]
    trip = case.pick(trips)
    if trip is None:
        return None
    was_cancelled = "cancelled" in trip.statuses
    status, rate = ("cancelled", CANCELLED_RATE) if was_cancelled else ("delayed", DELAYED_RATE)
    trip_name = case.name_trip(trip)
    asks = (
        f"$you want$s to cancel {trip_name} because one of its flights was {status}, "
        "and after that to be compensated for the trouble",
        f"$you complain$s that a flight of {trip_name} was {status}, want$s the reservation "
        "cancelled and ask$s for compensation once that is done",
    )
    return AirlineRequest(
        kind="cancel and compensation",
        facts={"status": status},
        label=f"the cancellation of {trip_name}",
        ask=case.rng.choice(asks),
        details=("the refund goes back the way it was paid and a certificate is welcome",),
        reads=status_checks(trip, status),
        writes=[_cancellation(trip), _certificate(case, rate * trip.size)],
        trip=trip,
    )


def status_checks(trip: Trip, status: str) -> list[Call]:
    """The calls that confirm which flights of a trip have ``status``."""
    return [
        ("get_flight_status", {"flight_number": number, "date": date})
        for number, date in trip.with_status(status)
    ]


def _compensable(case: AirlineCase, trips: Sequence[Trip]) -> list[Trip]:
    if any(name == "send_certificate" for name, _ in case.writes):
        return []  # the ids of two certificates would depend on the order of the calls
    return [
        trip
        for trip in trips
        if len({"cancelled", "delayed"} & set(trip.statuses)) == 1
        and deserves_compensation(case.user, trip)
    ]


def _valid_reasons(trip: Trip) -> tuple[str, ...]:
    if "cancelled" in trip.statuses:
        number, _ = trip.with_status("cancelled")[0]
        return (f"the airline cancelled flight {number}",)
    return COVERED + NOT_COVERED if trip.is_free_to_cancel else COVERED


def _cancellation(trip: Trip) -> Call:
    return "cancel_reservation", {"reservation_id": trip.id}


def _certificate(case: AirlineCase, amount: int) -> Call:
    return "send_certificate", {"user_id": case.user.user_id, "amount": amount}
