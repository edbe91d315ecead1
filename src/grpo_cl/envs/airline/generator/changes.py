"""Allowed requests to change the cabin, the bags or the passengers of a reservation."""

from collections.abc import Sequence
from typing import NamedTuple

from inspect_evals.tau2.airline.data_model import CabinClass, Passenger

from grpo_cl.envs.airline.generator.case import AirlineCase, AirlineRequest, as_flights, searches
from grpo_cl.envs.airline.generator.index import BAG_FEE, CABINS, Trip, free_bags
from grpo_cl.envs.generation.requests import Call

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
    facts: dict[str, str]


def cabin_words(cabin: CabinClass) -> str:
    """The everyday name of a cabin."""
    return cabin.replace("_", " ")


def bag_words(count: int) -> str:
    """A number of checked bags in words."""
    return "1 checked bag" if count == 1 else f"{count} checked bags"


def change_cabin(case: AirlineCase) -> AirlineRequest | None:
    """Change the cabin on the same flights."""
    trip = case.pick([trip for trip in case.free_trips if trip.is_open])
    if trip is None:
        return None
    others: list[CabinClass] = [cabin for cabin in CABINS if cabin != trip.reservation.cabin]
    cabin = case.rng.choice(others)
    cost = cabin_cost(case, trip, cabin)
    payment = None if cost is None else case.choose_payment(cost)
    allowance = free_bags(case.user, cabin, trip.size)
    # The policy does not say whether bags beyond a smaller allowance must be paid for.
    if cost is None or payment is None or trip.reservation.total_baggages > allowance:
        return None
    trip_name, cabin_name = case.name_trip(trip), cabin_words(cabin)
    asks = (
        f"$you want$s {trip_name} changed to {cabin_name} for everyone, on the same flights",
        f"$you would like everyone on {trip_name} to fly in {cabin_name} and to keep the flights",
        f"$you need$s all of {trip_name} switched to {cabin_name} without any change of flights",
    )
    way, what = (
        ("is charged to", "the extra charge") if cost > 0 else ("is refunded to", "the refund")
    )
    question = case.maybe_ask(cost, what)
    return AirlineRequest(
        kind="cabin",
        facts={"cabin": cabin_name, "way": way, "payment": payment.words},
        label=f"the cabin change of {trip_name}",
        ask=case.rng.choice(asks),
        details=(f"the difference {way} $your {payment.words}", *question.words),
        reads=price_checks(trip),
        writes=[_cabin_change(trip, cabin, payment.id)],
        trip=trip,
        charges={payment.id: cost},
        answer=question.answer,
    )


def upgrade_and_add_bags(case: AirlineCase) -> AirlineRequest | None:
    """Upgrade the cabin, then add bags under the allowance of the new cabin."""
    trips = [t for t in case.free_trips if t.is_open and t.reservation.cabin != "business"]
    trip = case.pick(trips)
    if trip is None:
        return None
    cabin = case.rng.choice(CABINS[CABINS.index(trip.reservation.cabin) + 1 :])
    more = case.rng.randint(1, 3)
    bags = _with_bags(case, trip, cabin, more)
    fare = cabin_cost(case, trip, cabin)
    payment = None if fare is None else case.choose_payment(max(0, fare) + bags.cost)
    if fare is None or payment is None:
        return None
    trip_name, cabin_name, added = case.name_trip(trip), cabin_words(cabin), bag_words(more)
    asks = (
        f"$you want$s {trip_name} upgraded to {cabin_name} on the same flights, "
        f"and then {added} added",
        f"$you want$s to move {trip_name} up to {cabin_name} first, keeping the flights, "
        f"and to add {added} after that",
    )
    return AirlineRequest(
        kind="cabin and bags",
        facts={"cabin": cabin_name, "bags": added, "payment": payment.words},
        label=f"the upgrade and the bags of {trip_name}",
        ask=case.rng.choice(asks),
        details=(f"both are settled with $your {payment.words}",),
        reads=price_checks(trip),
        writes=[_cabin_change(trip, cabin, payment.id), _bag_change(trip, bags, payment.id)],
        trip=trip,
        charges={payment.id: max(0, fare) + bags.cost},
    )


def add_bags(case: AirlineCase) -> AirlineRequest | None:
    """Add checked bags."""
    trip = case.pick([trip for trip in case.free_trips if trip.is_open])
    if trip is None:
        return None
    more = case.rng.randint(1, 4)
    bags = _with_bags(case, trip, trip.reservation.cabin, more)
    payment = case.choose_payment(bags.cost)
    if payment is None:
        return None
    trip_name, added = case.name_trip(trip), bag_words(more)
    asks = (
        f"$you want$s to add {added} to {trip_name}",
        f"$you need$s {added} on {trip_name} in addition to what is booked",
        f"$you would like {trip_name} to carry {bag_words(bags.total)} in total, "
        f"{more} more than now",
    )
    claims_gold = case.user.membership != "gold" and case.chance(0.3)
    question = case.maybe_ask(bags.cost, "what the added bags cost together")
    return AirlineRequest(
        kind="bags",
        facts={"bags": added, "total": bag_words(bags.total), "payment": payment.words},
        label=f"the bags on {trip_name}",
        ask=case.rng.choice(asks),
        details=(
            f"any fee for the bags goes on $your {payment.words}",
            *(("$you claim$s gold status, but the profile counts",) if claims_gold else ()),
            *question.words,
        ),
        writes=[_bag_change(trip, bags, payment.id)],
        trip=trip,
        charges={payment.id: bags.cost},
        answer=question.answer,
    )


def change_passenger(case: AirlineCase) -> AirlineRequest | None:
    """Correct or replace one passenger."""
    # A passenger change involves no payment, so it combines with all requests but a cancellation.
    closed = {
        request.trip.id
        for request in case.requests
        if request.trip and ("cancel" in request.kind or request.kind == "passenger")
    }
    trip = case.pick([trip for trip in case.trips if trip.is_open and trip.id not in closed])
    if trip is None:
        return None
    people = trip.reservation.passengers
    index = case.rng.randrange(trip.size)
    ask, person, facts = case.rng.choice((_rename, _new_birthday, _replace))(
        case, case.name_trip(trip), people[index]
    )
    after = [*people[:index], person, *people[index + 1 :]]
    if not _are_distinct(people) or not _are_distinct(after):
        return None
    passengers = [passenger.model_dump() for passenger in after]
    arguments = {"reservation_id": trip.id, "passengers": passengers}
    return AirlineRequest(
        kind="passenger",
        facts=facts,
        label=f"the passengers of {case.name_trip(trip)}",
        ask=ask,
        details=("nothing else on the passenger list changes, nor does its order",),
        writes=[("update_reservation_passengers", arguments)],
        trip=trip,
    )


def cabin_cost(case: AirlineCase, trip: Trip, cabin: CabinClass) -> int | None:
    """The price difference of another cabin for all passengers; None if there are too few seats."""
    fares = case.index.fares(trip.legs, cabin, trip.size)
    if fares is None or case.shares_seats(trip.legs):
        return None
    return trip.size * (sum(fares) - sum(flight.price for flight in trip.reservation.flights))


def price_checks(trip: Trip) -> list[Call]:
    """The searches that return the current prices of a trip's flights."""
    flights = trip.reservation.flights
    return searches([(flight.origin, flight.destination, flight.date) for flight in flights])


def new_person(case: AirlineCase) -> Passenger:
    """A person who is not in the database."""
    rng = case.rng
    first_name, last_name = rng.choice(FIRST_NAMES), rng.choice(LAST_NAMES)
    return Passenger(first_name=first_name, last_name=last_name, dob=_birthday(case))


def full_name(person: Passenger) -> str:
    """First and last name."""
    return f"{person.first_name} {person.last_name}"


def _with_bags(case: AirlineCase, trip: Trip, cabin: CabinClass, more: int) -> _Bags:
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


def _rename(case: AirlineCase, trip_name: str, old: Passenger) -> _Correction:
    names = [name for name in LAST_NAMES if name != old.last_name]
    person = old.model_copy(update={"last_name": case.rng.choice(names)})
    before, after = full_name(old), full_name(person)
    asks = (
        f"$you want$s the last name of {before} on {trip_name} changed to {person.last_name}",
        f"$you need$s a name corrected on {trip_name}: {before} should read {after}",
    )
    facts = {"before": before, "after": after, "last_name": person.last_name}
    return _Correction(case.rng.choice(asks), person, facts)


def _new_birthday(case: AirlineCase, trip_name: str, old: Passenger) -> _Correction:
    person = old.model_copy(update={"dob": _birthday(case)})
    ask = (
        f"$you want$s the date of birth of {full_name(old)} on {trip_name} changed to {person.dob}"
    )
    return _Correction(ask, person, {"before": full_name(old), "birthday": person.dob})


def _replace(case: AirlineCase, trip_name: str, old: Passenger) -> _Correction:
    saved = case.user.saved_passengers
    is_saved = bool(saved) and case.chance(0.7)
    person = case.rng.choice(saved) if is_saved else new_person(case)
    if full_name(person) == full_name(old):
        return _rename(case, trip_name, old)
    born = "who is saved in $your profile" if is_saved else f"born {person.dob}"
    before, after = full_name(old), full_name(person)
    asks = (
        f"$you want$s passenger {before} on {trip_name} replaced by {after}, {born}",
        f"$you need$s {after}, {born}, to travel on {trip_name} in place of {before}",
    )
    facts = {"before": before, "after": after, "born": born}
    return _Correction(case.rng.choice(asks), person, facts)


def _birthday(case: AirlineCase) -> str:
    rng = case.rng
    return f"{rng.randint(1950, 2010)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def _are_distinct(people: Sequence[Passenger]) -> bool:
    return len({full_name(person) for person in people}) == len(people)
