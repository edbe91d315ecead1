"""Cancellations and compensation that the airline's policy allows."""

from collections.abc import Sequence

from grpo_cl.domains.generators.airline.case import Call, Case, Request
from grpo_cl.domains.generators.airline.world import Trip, deserves_compensation

COVERED = (
    "$you $are too ill to fly",
    "a doctor has told $you not to fly for health reasons",
    "$you broke a leg and cannot travel",
    "severe storms are forecast on the day of departure",
    "there is a hurricane warning for the destination",
)
"""Reasons that travel insurance pays for."""

NOT_COVERED = (
    "$your plans have changed",
    "a meeting was moved to another week",
    "$you found a cheaper way to travel",
    "the event $you wanted to attend was called off",
    "$you would rather stay at home",
)

CANCELLED_RATE = 100
DELAYED_RATE = 50
"""Dollars per passenger."""


def cancel(case: Case) -> Request | None:
    """A cancellation for a reason that counts."""
    trips = [
        trip
        for trip in case.free_trips
        if trip.is_free_to_cancel or (trip.is_ahead and trip.is_insured)
    ]
    trip = case.pick(trips)
    if trip is None:
        return None
    named = case.trip(trip)
    reason = case.rng.choice(_good_reasons(trip))
    asks = (
        f"$you want$s to cancel {named} because {reason}",
        f"$you need$s {named} cancelled, as {reason}",
        f"$you would like to cancel {named}, since {reason}",
    )
    question = case.asks_for(trip.paid, "the total refund")
    return Request(
        kind="cancel",
        label=f"the cancellation of {named}",
        ask=case.rng.choice(asks),
        details=("the refund goes back the way it was paid", *question.words),
        writes=[_cancellation(trip)],
        trip=trip,
        told=question.told,
    )


def compensate(case: Case) -> Request | None:
    """A certificate for flights the airline cancelled."""
    trips = [trip for trip in _troubled(case, case.free_trips) if "cancelled" in trip.statuses]
    trip = case.pick(trips)
    if trip is None:
        return None
    named = case.trip(trip)
    asks = (
        f"$you complain$s that the airline cancelled a flight of {named} "
        "and ask$s for compensation",
        f"$you want$s compensation because a flight of {named} was cancelled by the airline",
        f"$you ask$s what the airline offers $you for a cancelled flight of {named} "
        "and want$s to be compensated",
    )
    return Request(
        kind="compensation",
        label=f"the compensation for {named}",
        ask=case.rng.choice(asks),
        details=("a travel certificate is welcome and the reservation itself stays as it is",),
        reads=status_checks(trip, "cancelled"),
        writes=[_certificate(case, CANCELLED_RATE * trip.size)],
        trip=trip,
    )


def cancel_and_compensate(case: Case) -> Request | None:
    """A trip the airline cancelled or delayed is called off, and the trouble made good."""
    trips = [trip for trip in _troubled(case, case.free_trips) if trip.is_free_to_cancel]
    trip = case.pick(trips)
    if trip is None:
        return None
    was_cancelled = "cancelled" in trip.statuses
    trouble, rate = ("cancelled", CANCELLED_RATE) if was_cancelled else ("delayed", DELAYED_RATE)
    named = case.trip(trip)
    asks = (
        f"$you want$s to cancel {named} because one of its flights was {trouble}, "
        "and after that to be compensated for the trouble",
        f"$you complain$s that a flight of {named} was {trouble}, want$s the reservation "
        "cancelled and ask$s for compensation once that is done",
    )
    return Request(
        kind="cancel and compensation",
        label=f"the cancellation of {named}",
        ask=case.rng.choice(asks),
        details=("the refund goes back the way it was paid and a certificate is welcome",),
        reads=status_checks(trip, trouble),
        writes=[_cancellation(trip), _certificate(case, rate * trip.size)],
        trip=trip,
    )


def status_checks(trip: Trip, status: str) -> list[Call]:
    """The look-ups that confirm which flights of a trip have ``status``."""
    return [
        ("get_flight_status", {"flight_number": number, "date": date})
        for number, date in trip.with_status(status)
    ]


def _troubled(case: Case, trips: Sequence[Trip]) -> list[Trip]:
    if any(name == "send_certificate" for name, _ in case.writes):
        return []  # two certificates would be told apart by the order they were sent in
    return [
        trip
        for trip in trips
        if len({"cancelled", "delayed"} & set(trip.statuses)) == 1
        and deserves_compensation(case.user, trip)
    ]


def _good_reasons(trip: Trip) -> tuple[str, ...]:
    if "cancelled" in trip.statuses:
        number, _ = trip.with_status("cancelled")[0]
        return (f"the airline cancelled flight {number}",)
    return COVERED + NOT_COVERED if trip.is_free_to_cancel else COVERED


def _cancellation(trip: Trip) -> Call:
    return "cancel_reservation", {"reservation_id": trip.id}


def _certificate(case: Case, amount: int) -> Call:
    return "send_certificate", {"user_id": case.user.user_id, "amount": amount}
