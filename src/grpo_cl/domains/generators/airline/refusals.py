"""What a customer may ask for although the airline's policy forbids it."""

from collections.abc import Sequence

from grpo_cl.domains.generators.airline.cancellations import (
    COVERED,
    NOT_COVERED,
    status_checks,
)
from grpo_cl.domains.generators.airline.case import Call, Case, Request
from grpo_cl.domains.generators.airline.changes import (
    cabin_cost,
    full_name,
    new_person,
    price_checks,
)
from grpo_cl.domains.generators.airline.world import BOOKABLE_DAYS, Trip, deserves_compensation

UNFOUNDED_SHARE = 0.4
"""How often a claim for nothing is made where it could be."""


def cancel_without_grounds(case: Case) -> Request | None:
    """A cancellation that neither time, cabin nor insurance allows."""
    trip = case.pick(
        [trip for trip in case.free_trips if trip.is_ahead and not trip.is_free_to_cancel]
    )
    if trip is None:
        return None
    named = case.trip(trip)
    reason = case.rng.choice(NOT_COVERED if trip.is_insured else COVERED + NOT_COVERED)
    asks = (
        f"$you want$s to cancel {named} with a refund because {reason}",
        f"$you ask$s for {named} to be cancelled and refunded, since {reason}",
    )
    return _refused(case, trip, "cancellation without grounds", asks)


def cancel_after_take_off(case: Case) -> Request | None:
    """A cancellation of a trip that has begun; only a person can look at it."""
    trip = case.pick([trip for trip in case.free_trips if trip.is_flown])
    if trip is None:
        return None
    named = case.trip(trip)
    asks = (
        f"$you want$s to cancel {named} and get the money back because "
        f"{case.rng.choice(NOT_COVERED)}",
    )
    summary = f"The customer wants to cancel reservation {trip.id}, which is partly flown."
    transfer = ("transfer_to_human_agents", {"summary": summary})
    return _refused(case, trip, "cancellation after take-off", asks, reads=[transfer])


def move_basic_economy(case: Case) -> Request | None:
    """Other flights on a ticket that cannot change flights."""
    trips = [t for t in case.free_trips if t.is_open and t.reservation.cabin == "basic_economy"]
    trip = case.pick(trips)
    if trip is None:
        return None
    days = [day for day in BOOKABLE_DAYS if day != trip.starts_on]
    named, when = case.trip(trip), case.day(case.rng.choice(days))
    asks = (
        f"$you want$s to leave on {when} with {named} instead, without changing the cabin",
        f"$you would like the first flight of {named} moved to {when} in the cabin it is in",
    )
    return _refused(case, trip, "basic economy change", asks)


def change_destination(case: Case) -> Request | None:
    """A trip to somewhere else."""
    trips = [t for t in case.free_trips if t.is_open and t.reservation.cabin != "basic_economy"]
    trip = case.pick(trips)
    if trip is None:
        return None
    booked = trip.reservation
    elsewhere = sorted(set(case.world.departures) - {booked.origin, booked.destination})
    place, named = case.place(case.rng.choice(elsewhere)), case.trip(trip)
    asks = (
        f"$you want$s {named} to go to {place} instead of {case.place(booked.destination)}",
        f"$you would like to change the destination of {named} to {place}",
    )
    return _refused(case, trip, "other destination", asks)


def upgrade_one_flight(case: Case) -> Request | None:
    """Another cabin for a part of the flights."""
    trips = [
        trip
        for trip in case.free_trips
        if trip.is_open and len(trip.legs) > 1 and trip.reservation.cabin != "business"
    ]
    trip = case.pick(trips)
    if trip is None:
        return None
    number, _ = case.rng.choice(trip.legs)
    named = case.trip(trip)
    asks = (
        f"$you want$s business class on flight {number} of {named} only, "
        "with the other flights left in their cabin",
    )
    return _refused(case, trip, "cabin of one flight", asks)


def upgrade_with_certificate(case: Case) -> Request | None:
    """A change that is to be paid with a certificate."""
    trips = [t for t in case.free_trips if t.is_open and t.reservation.cabin != "business"]
    trip = case.pick(trips)
    if trip is None or not case.certificates:
        return None
    cost = cabin_cost(case, trip, "business")
    if cost is None or cost <= 0:
        return None
    paper = case.means(case.rng.choice(case.certificates)).words
    named = case.trip(trip)
    asks = (
        f"$you want$s {named} upgraded to business on the same flights, "
        f"but only if $your {paper} pays for it",
    )
    return _refused(case, trip, "certificate for a change", asks, reads=price_checks(trip))


def remove_bags(case: Case) -> Request | None:
    """Fewer checked bags."""
    trip = case.pick([t for t in case.free_trips if t.is_open and t.reservation.total_baggages])
    if trip is None:
        return None
    named = case.trip(trip)
    asks = (
        f"$you want$s one checked bag removed from {named}",
        f"$you no longer need$s all the checked bags of {named} and want$s one taken off",
    )
    return _refused(case, trip, "fewer bags", asks)


def change_headcount(case: Case) -> Request | None:
    """A passenger more or less."""
    trip = case.pick([trip for trip in case.free_trips if trip.is_open])
    if trip is None:
        return None
    named, person = case.trip(trip), new_person(case)
    asks = [f"$you want$s to add {full_name(person)}, born {person.dob}, to {named}"]
    if trip.size > 1:
        leaver = case.rng.choice(trip.reservation.passengers)
        asks.append(f"$you want$s {full_name(leaver)} taken off {named} while the others still fly")
    return _refused(case, trip, "number of passengers", asks)


def add_insurance(case: Case) -> Request | None:
    """Insurance after the booking."""
    trip = case.pick([trip for trip in case.free_trips if trip.is_open and not trip.is_insured])
    if trip is None:
        return None
    named = case.trip(trip)
    asks = (
        f"$you want$s to add travel insurance to {named}",
        f"$you forgot the travel insurance for {named} and want$s to buy it now",
    )
    return _refused(case, trip, "late insurance", asks)


def compensate_ineligible(case: Case) -> Request | None:
    """Compensation for a customer who has no claim to it."""
    trips = [
        trip
        for trip in case.free_trips
        if "cancelled" in trip.statuses and not deserves_compensation(case.user, trip)
    ]
    trip = case.pick(trips)
    if trip is None:
        return None
    named = case.trip(trip)
    asks = (
        f"$you complain$s about a cancelled flight of {named} and ask$s for compensation",
        f"$you want$s a certificate because the airline cancelled a flight of {named}",
    )
    reads = status_checks(trip, "cancelled")
    return _refused(case, trip, "ineligible for compensation", asks, reads=reads)


def compensate_nothing(case: Case) -> Request | None:
    """Compensation for a cancellation that did not happen."""
    trips = [t for t in case.free_trips if {"cancelled", "delayed"}.isdisjoint(t.statuses)]
    trip = case.pick(trips)
    # Nearly everybody could claim this; without a brake it would crowd out the rest.
    if trip is None or case.rng.random() > UNFOUNDED_SHARE:
        return None
    number, date = case.rng.choice(trip.legs)
    named = case.trip(trip)
    asks = (
        f"$you claim$s that flight {number} of {named} was cancelled and ask$s for compensation",
        f"$you want$s a certificate because flight {number} of {named} was cancelled, $you say$s",
    )
    reads = [("get_flight_status", {"flight_number": number, "date": date})]
    return _refused(case, trip, "unfounded compensation", asks, reads=reads)


FORBIDDEN = (
    cancel_without_grounds,
    move_basic_economy,
    change_destination,
    upgrade_one_flight,
    upgrade_with_certificate,
    remove_bags,
    change_headcount,
    add_insurance,
    compensate_ineligible,
    compensate_nothing,
)
"""Requests that can be refused while others in the same call are met."""


def _refused(
    case: Case, trip: Trip, kind: str, asks: Sequence[str], *, reads: Sequence[Call] = ()
) -> Request:
    ask = case.rng.choice(asks)
    return Request(kind=kind, label=case.trip(trip), ask=ask, reads=reads, trip=trip)
