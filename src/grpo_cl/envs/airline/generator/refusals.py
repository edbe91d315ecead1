"""Requests that the airline's policy forbids; the database must not change."""

from collections.abc import Sequence

from grpo_cl.envs.airline.generator.cancellations import COVERED, NOT_COVERED, status_checks
from grpo_cl.envs.airline.generator.case import AirlineCase, AirlineRequest
from grpo_cl.envs.airline.generator.changes import cabin_cost, full_name, new_person, price_checks
from grpo_cl.envs.airline.generator.index import BOOKABLE_DAYS, Trip, deserves_compensation
from grpo_cl.envs.generation.requests import Call

UNFOUNDED_SHARE = 0.4
"""Probability of an unfounded claim; nearly every customer could make one."""


def cancel_without_grounds(case: AirlineCase) -> AirlineRequest | None:
    """Cancel a trip although time, cabin and insurance do not allow it."""
    trip = case.pick(
        [trip for trip in case.free_trips if trip.is_ahead and not trip.is_free_to_cancel]
    )
    if trip is None:
        return None
    trip_name = case.name_trip(trip)
    reason = case.rng.choice(NOT_COVERED if trip.is_insured else COVERED + NOT_COVERED)
    asks = (
        f"$you want$s to cancel {trip_name} with a refund because {reason}",
        f"$you ask$s for {trip_name} to be cancelled and refunded, since {reason}",
    )
    request = _refused(case, trip, "cancellation without grounds", asks)
    return request._replace(facts={"reason": reason})


def cancel_after_take_off(case: AirlineCase) -> AirlineRequest | None:
    """Cancel a trip that has begun, which only a human agent can handle."""
    trip = case.pick([trip for trip in case.free_trips if trip.is_flown])
    if trip is None:
        return None
    trip_name = case.name_trip(trip)
    reason = case.rng.choice(NOT_COVERED)
    asks = (f"$you want$s to cancel {trip_name} and get the money back because {reason}",)
    summary = f"The customer wants to cancel reservation {trip.id}, which is partly flown."
    transfer = ("transfer_to_human_agents", {"summary": summary})
    request = _refused(case, trip, "cancellation after take-off", asks, reads=[transfer])
    return request._replace(facts={"reason": reason})


def move_basic_economy(case: AirlineCase) -> AirlineRequest | None:
    """Change the flights of a basic economy ticket."""
    trips = [t for t in case.free_trips if t.is_open and t.reservation.cabin == "basic_economy"]
    trip = case.pick(trips)
    if trip is None:
        return None
    days = [day for day in BOOKABLE_DAYS if day != trip.starts_on]
    trip_name, when = case.name_trip(trip), case.name_day(case.rng.choice(days))
    asks = (
        f"$you want$s to leave on {when} with {trip_name} instead, without changing the cabin",
        f"$you would like the first flight of {trip_name} moved to {when} in the cabin it is in",
    )
    request = _refused(case, trip, "basic economy change", asks)
    return request._replace(facts={"when": when})


def change_destination(case: AirlineCase) -> AirlineRequest | None:
    """Change the destination of a trip."""
    trips = [t for t in case.free_trips if t.is_open and t.reservation.cabin != "basic_economy"]
    trip = case.pick(trips)
    if trip is None:
        return None
    booked = trip.reservation
    elsewhere = sorted(set(case.index.departures) - {booked.origin, booked.destination})
    place, trip_name = case.name_airport(case.rng.choice(elsewhere)), case.name_trip(trip)
    asks = (
        f"$you want$s {trip_name} to go to {place} "
        f"instead of {case.name_airport(booked.destination)}",
        f"$you would like to change the destination of {trip_name} to {place}",
    )
    request = _refused(case, trip, "other destination", asks)
    return request._replace(facts={"place": place, "before": case.name_airport(booked.destination)})


def upgrade_one_flight(case: AirlineCase) -> AirlineRequest | None:
    """Change the cabin of one flight only."""
    trips = [
        trip
        for trip in case.free_trips
        if trip.is_open and len(trip.legs) > 1 and trip.reservation.cabin != "business"
    ]
    trip = case.pick(trips)
    if trip is None:
        return None
    number, _ = case.rng.choice(trip.legs)
    trip_name = case.name_trip(trip)
    asks = (
        f"$you want$s business class on flight {number} of {trip_name} only, "
        "with the other flights left in their cabin",
    )
    request = _refused(case, trip, "cabin of one flight", asks)
    return request._replace(facts={"number": number})


def upgrade_with_certificate(case: AirlineCase) -> AirlineRequest | None:
    """Pay a change with a certificate."""
    trips = [t for t in case.free_trips if t.is_open and t.reservation.cabin != "business"]
    trip = case.pick(trips)
    if trip is None or not case.certificates:
        return None
    cost = cabin_cost(case, trip, "business")
    if cost is None or cost <= 0:
        return None
    certificate = case.name_payment(case.rng.choice(case.certificates)).words
    trip_name = case.name_trip(trip)
    asks = (
        f"$you want$s {trip_name} upgraded to business on the same flights, "
        f"but only if $your {certificate} pays for it",
    )
    request = _refused(case, trip, "certificate for a change", asks, reads=price_checks(trip))
    return request._replace(facts={"certificate": certificate})


def remove_bags(case: AirlineCase) -> AirlineRequest | None:
    """Remove a checked bag."""
    trip = case.pick([t for t in case.free_trips if t.is_open and t.reservation.total_baggages])
    if trip is None:
        return None
    trip_name = case.name_trip(trip)
    asks = (
        f"$you want$s one checked bag removed from {trip_name}",
        f"$you no longer need$s all the checked bags of {trip_name} and want$s one taken off",
    )
    return _refused(case, trip, "fewer bags", asks)


def change_headcount(case: AirlineCase) -> AirlineRequest | None:
    """Add or remove a passenger."""
    trip = case.pick([trip for trip in case.free_trips if trip.is_open])
    if trip is None:
        return None
    trip_name, person = case.name_trip(trip), new_person(case)
    asks = [f"$you want$s to add {full_name(person)}, born {person.dob}, to {trip_name}"]
    facts = [{"person": f"{full_name(person)}, born {person.dob}"}]
    if trip.size > 1:
        leaver = full_name(case.rng.choice(trip.reservation.passengers))
        asks.append(f"$you want$s {leaver} taken off {trip_name} while the others still fly")
        facts.append({"leaver": leaver})
    request = _refused(case, trip, "number of passengers", asks)
    return request._replace(facts=facts[asks.index(request.ask)])


def add_insurance(case: AirlineCase) -> AirlineRequest | None:
    """Add insurance after the booking."""
    trip = case.pick([trip for trip in case.free_trips if trip.is_open and not trip.is_insured])
    if trip is None:
        return None
    trip_name = case.name_trip(trip)
    asks = (
        f"$you want$s to add travel insurance to {trip_name}",
        f"$you forgot the travel insurance for {trip_name} and want$s to buy it now",
    )
    return _refused(case, trip, "late insurance", asks)


def compensate_ineligible(case: AirlineCase) -> AirlineRequest | None:
    """Ask for compensation without being eligible."""
    trips = [
        trip
        for trip in case.free_trips
        if "cancelled" in trip.statuses and not deserves_compensation(case.user, trip)
    ]
    trip = case.pick(trips)
    if trip is None:
        return None
    trip_name = case.name_trip(trip)
    asks = (
        f"$you complain$s about a cancelled flight of {trip_name} and ask$s for compensation",
        f"$you want$s a certificate because the airline cancelled a flight of {trip_name}",
    )
    reads = status_checks(trip, "cancelled")
    return _refused(case, trip, "ineligible for compensation", asks, reads=reads)


def compensate_nothing(case: AirlineCase) -> AirlineRequest | None:
    """Ask for compensation for a cancellation that did not happen."""
    trips = [t for t in case.free_trips if {"cancelled", "delayed"}.isdisjoint(t.statuses)]
    trip = case.pick(trips)
    if trip is None or case.rng.random() > UNFOUNDED_SHARE:
        return None
    number, date = case.rng.choice(trip.legs)
    trip_name = case.name_trip(trip)
    asks = (
        f"$you claim$s that flight {number} of {trip_name} was cancelled "
        "and ask$s for compensation",
        f"$you want$s a certificate because flight {number} of {trip_name} was cancelled, "
        "$you say$s",
    )
    reads = [("get_flight_status", {"flight_number": number, "date": date})]
    request = _refused(case, trip, "unfounded compensation", asks, reads=reads)
    return request._replace(facts={"number": number})


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
"""Forbidden requests that can be combined with allowed ones."""


def _refused(
    case: AirlineCase, trip: Trip, kind: str, asks: Sequence[str], *, reads: Sequence[Call] = ()
) -> AirlineRequest:
    ask = case.rng.choice(asks)
    return AirlineRequest(kind=kind, label=case.name_trip(trip), ask=ask, reads=reads, trip=trip)
