"""Cabins, bags and passengers of a reservation, changed as the airline's policy allows."""

from collections.abc import Sequence
from typing import NamedTuple

from inspect_evals.tau2.airline.data_model import CabinClass, Passenger

from grpo_cl.domains.generators.airline.case import Call, Case, Request, as_flights, searches
from grpo_cl.domains.generators.airline.world import BAG_FEE, CABINS, Trip, free_bags

# fmt: off
FIRST_NAMES = (
    "Ada", "Bruno", "Clara", "Dmitri", "Elena", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kaya",
    "Leon", "Marta", "Nadia", "Oskar", "Petra", "Quentin", "Rosa", "Stefan", "Tara",
)
LAST_NAMES = (
    "Abbott", "Becker", "Castillo", "Duarte", "Eriksen", "Fischer", "Grant", "Holm", "Ivanov",
    "Jensen", "Keller", "Lindgren", "Marsh", "Novak", "Okafor", "Pereira", "Quinn", "Rivera",
    "Sato", "Tanaka", "Ueda", "Vargas", "Weber", "Yilmaz", "Zimmer",
)
# fmt: on


class _Bags(NamedTuple):
    total: int
    nonfree: int

    @property
    def cost(self) -> int:
        return BAG_FEE * self.nonfree  # no reservation of the database has paid bags


class _Correction(NamedTuple):
    ask: str
    person: Passenger


def cabin_words(cabin: CabinClass) -> str:
    """A cabin as people say it."""
    return cabin.replace("_", " ")


def bag_words(count: int) -> str:
    """A number of checked bags."""
    return "1 checked bag" if count == 1 else f"{count} checked bags"


def change_cabin(case: Case) -> Request | None:
    """Another cabin on the same flights."""
    trip = case.pick([trip for trip in case.free_trips if trip.is_open])
    if trip is None:
        return None
    others: list[CabinClass] = [cabin for cabin in CABINS if cabin != trip.reservation.cabin]
    cabin = case.rng.choice(others)
    cost = cabin_cost(case, trip, cabin)
    means = None if cost is None else case.payable(cost)
    allowance = free_bags(case.user, cabin, trip.size)
    # Whether bags that lose their allowance must be paid for, the policy does not say.
    if cost is None or means is None or trip.reservation.total_baggages > allowance:
        return None
    named, wanted = case.trip(trip), cabin_words(cabin)
    asks = (
        f"$you want$s {named} changed to {wanted} for everyone, on the same flights",
        f"$you would like everyone on {named} to fly in {wanted} and to keep the flights",
        f"$you need$s all of {named} switched to {wanted} without any change of flights",
    )
    way, what = (
        ("is charged to", "the extra charge") if cost > 0 else ("is refunded to", "the refund")
    )
    question = case.asks_for(cost, what)
    return Request(
        kind="cabin",
        label=f"the cabin change of {named}",
        ask=case.rng.choice(asks),
        details=(f"the difference {way} $your {means.words}", *question.words),
        reads=price_checks(trip),
        writes=[_cabin_change(trip, cabin, means.id)],
        trip=trip,
        charges={means.id: cost},
        told=question.told,
    )


def upgrade_and_add_bags(case: Case) -> Request | None:
    """A better cabin first, then bags at the allowance of that cabin."""
    trips = [t for t in case.free_trips if t.is_open and t.reservation.cabin != "business"]
    trip = case.pick(trips)
    if trip is None:
        return None
    cabin = case.rng.choice(CABINS[CABINS.index(trip.reservation.cabin) + 1 :])
    more = case.rng.randint(1, 3)
    bags = _with_bags(case, trip, cabin, more)
    fare = cabin_cost(case, trip, cabin)
    means = None if fare is None else case.payable(max(0, fare) + bags.cost)
    if fare is None or means is None:
        return None
    named, wanted, added = case.trip(trip), cabin_words(cabin), bag_words(more)
    asks = (
        f"$you want$s {named} upgraded to {wanted} on the same flights, and then {added} added",
        f"$you want$s to move {named} up to {wanted} first, keeping the flights, "
        f"and to add {added} after that",
    )
    return Request(
        kind="cabin and bags",
        label=f"the upgrade and the bags of {named}",
        ask=case.rng.choice(asks),
        details=(f"both are settled with $your {means.words}",),
        reads=price_checks(trip),
        writes=[_cabin_change(trip, cabin, means.id), _bag_change(trip, bags, means.id)],
        trip=trip,
        charges={means.id: max(0, fare) + bags.cost},
    )


def add_bags(case: Case) -> Request | None:
    """More checked bags."""
    trip = case.pick([trip for trip in case.free_trips if trip.is_open])
    if trip is None:
        return None
    more = case.rng.randint(1, 4)
    bags = _with_bags(case, trip, trip.reservation.cabin, more)
    means = case.payable(bags.cost)
    if means is None:
        return None
    named, added = case.trip(trip), bag_words(more)
    asks = (
        f"$you want$s to add {added} to {named}",
        f"$you need$s {added} on {named} in addition to what is booked",
        f"$you would like {named} to carry {bag_words(bags.total)} in total, {more} more than now",
    )
    believes = case.user.membership != "gold" and case.lucky(0.3)
    question = case.asks_for(bags.cost, "what the added bags cost together")
    return Request(
        kind="bags",
        label=f"the bags on {named}",
        ask=case.rng.choice(asks),
        details=(
            f"any fee for the bags goes on $your {means.words}",
            *(("$you claim$s gold status, but the profile counts",) if believes else ()),
            *question.words,
        ),
        writes=[_bag_change(trip, bags, means.id)],
        trip=trip,
        charges={means.id: bags.cost},
        told=question.told,
    )


def change_passenger(case: Case) -> Request | None:
    """A correction of one passenger, or another person in their place."""
    # Passengers touch no payment, so their change mixes with any other but a cancellation.
    closed = {
        request.trip.id
        for request in case.requests
        if request.trip and ("cancel" in request.kind or request.kind == "passenger")
    }
    trip = case.pick([trip for trip in case.trips if trip.is_open and trip.id not in closed])
    if trip is None:
        return None
    people = trip.reservation.passengers
    place = case.rng.randrange(trip.size)
    ask, person = case.rng.choice((_rename, _new_birthday, _replace))(
        case, case.trip(trip), people[place]
    )
    after = [*people[:place], person, *people[place + 1 :]]
    if not _are_distinct(people) or not _are_distinct(after):
        return None
    passengers = [passenger.model_dump() for passenger in after]
    arguments = {"reservation_id": trip.id, "passengers": passengers}
    return Request(
        kind="passenger",
        label=f"the passengers of {case.trip(trip)}",
        ask=ask,
        details=("nothing else on the passenger list changes, nor does its order",),
        writes=[("update_reservation_passengers", arguments)],
        trip=trip,
    )


def cabin_cost(case: Case, trip: Trip, cabin: CabinClass) -> int | None:
    """What another cabin costs all passengers, or None where seats are lacking."""
    fares = case.world.fares(trip.legs, cabin, trip.size)
    if fares is None or case.shares_seats(trip.legs):
        return None
    return trip.size * (sum(fares) - sum(flight.price for flight in trip.reservation.flights))


def price_checks(trip: Trip) -> list[Call]:
    """The searches that show today's prices of a trip's flights."""
    flights = trip.reservation.flights
    return searches([(flight.origin, flight.destination, flight.date) for flight in flights])


def new_person(case: Case) -> Passenger:
    """Somebody the database does not know."""
    rng = case.rng
    first_name, last_name = rng.choice(FIRST_NAMES), rng.choice(LAST_NAMES)
    return Passenger(first_name=first_name, last_name=last_name, dob=_birthday(case))


def full_name(person: Passenger) -> str:
    """First and last name."""
    return f"{person.first_name} {person.last_name}"


def _with_bags(case: Case, trip: Trip, cabin: CabinClass, more: int) -> _Bags:
    total = trip.reservation.total_baggages + more
    return _Bags(total, max(0, total - free_bags(case.user, cabin, trip.size)))


def _cabin_change(trip: Trip, cabin: CabinClass, payment_id: str) -> Call:
    return "update_reservation_flights", {
        "reservation_id": trip.id,
        "cabin": cabin,
        "flights": as_flights(trip.legs),
        "payment_id": payment_id,
    }


def _bag_change(trip: Trip, bags: _Bags, payment_id: str) -> Call:
    return "update_reservation_baggages", {
        "reservation_id": trip.id,
        "total_baggages": bags.total,
        "nonfree_baggages": bags.nonfree,
        "payment_id": payment_id,
    }


def _rename(case: Case, named: str, old: Passenger) -> _Correction:
    names = [name for name in LAST_NAMES if name != old.last_name]
    person = old.model_copy(update={"last_name": case.rng.choice(names)})
    before, after = full_name(old), full_name(person)
    asks = (
        f"$you want$s the last name of {before} on {named} changed to {person.last_name}",
        f"$you need$s a name corrected on {named}: {before} should read {after}",
    )
    return _Correction(case.rng.choice(asks), person)


def _new_birthday(case: Case, named: str, old: Passenger) -> _Correction:
    person = old.model_copy(update={"dob": _birthday(case)})
    ask = f"$you want$s the date of birth of {full_name(old)} on {named} changed to {person.dob}"
    return _Correction(ask, person)


def _replace(case: Case, named: str, old: Passenger) -> _Correction:
    saved = case.user.saved_passengers
    is_saved = bool(saved) and case.lucky(0.7)
    person = case.rng.choice(saved) if is_saved else new_person(case)
    if full_name(person) == full_name(old):
        return _rename(case, named, old)
    born = "who is saved in $your profile" if is_saved else f"born {person.dob}"
    before, after = full_name(old), full_name(person)
    asks = (
        f"$you want$s passenger {before} on {named} replaced by {after}, {born}",
        f"$you need$s {after}, {born}, to travel on {named} in place of {before}",
    )
    return _Correction(case.rng.choice(asks), person)


def _birthday(case: Case) -> str:
    rng = case.rng
    return f"{rng.randint(1950, 2010)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def _are_distinct(people: Sequence[Passenger]) -> bool:
    return len({full_name(person) for person in people}) == len(people)
