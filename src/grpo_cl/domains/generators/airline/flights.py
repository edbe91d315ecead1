"""Which flights a customer means, and other flights for a reservation they have."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from inspect_evals.tau2.airline.data_model import CabinClass

from grpo_cl.domains.generators.airline.case import Call, Case, Request, as_flights
from grpo_cl.domains.generators.airline.changes import cabin_words
from grpo_cl.domains.generators.airline.world import BOOKABLE_DAYS, Leg, Option, Trip


class Search(NamedTuple):
    """Where somebody wants to fly, when and how."""

    origin: str
    destination: str
    day: str
    cabin: CabinClass
    seats: int

    def call(self, tool: str) -> Call:
        """The search as the agent makes it."""
        return tool, {"origin": self.origin, "destination": self.destination, "date": self.day}


class Choice(NamedTuple):
    """A flight or connection, and the words that fit no other."""

    option: Option
    words: str
    read: Call


def choose(case: Case, search: Search) -> Choice | None:
    """Settle on one way to fly; by number for an easy task, by a property for a hard one."""
    wanted = ((search.origin, search.destination), search.day, search.cabin, search.seats)
    direct = list(case.world.direct(*wanted))
    is_hard = case.lucky(1.0)
    if direct and is_hard:
        choice = case.rng.choice((_cheapest, _cheapest, _earliest, _latest))(direct, search)
    elif direct:
        choice = _by_number(case, direct, search)
    elif is_hard:
        choice = _cheapest(list(case.world.one_stop(*wanted)), search)
    else:
        choice = None
    return None if choice is None or case.shares_seats(choice.option.legs) else choice


def change_flights(case: Case) -> Request | None:
    """Another day for the way out or the way back."""
    trips = [
        trip
        for trip in case.free_trips
        if trip.is_open and trip.journeys and trip.reservation.cabin != "basic_economy"
    ]
    trip = case.pick(trips)
    if trip is None:
        return None
    way = case.rng.randrange(len(trip.journeys))
    choice = _new_journey(case, trip, way)
    if choice is None:
        return None
    cost = trip.size * (choice.option.price - sum(leg.price for leg in trip.journeys[way]))
    means = case.payable(cost)
    if means is None:
        return None
    arguments = {
        "reservation_id": trip.id,
        "cabin": trip.reservation.cabin,
        "flights": as_flights(_legs_after(trip, way, choice.option)),
        "payment_id": means.id,
    }
    question = case.asks_for(cost, "the extra charge" if cost > 0 else "the refund")
    return Request(
        kind="flights",
        label=f"the new flights of {case.trip(trip)}",
        ask=_ask_for_day(case, trip, way, choice.option.legs[0]),
        details=(
            f"$you want$s {choice.words}",
            f"any difference in price is settled with $your {means.words}",
            *question.words,
        ),
        reads=[choice.read],
        writes=[("update_reservation_flights", arguments)],
        trip=trip,
        charges={means.id: cost},
        told=question.told,
    )


def _new_journey(case: Case, trip: Trip, way: int) -> Choice | None:
    journey = trip.journeys[way]
    days = [day for day in BOOKABLE_DAYS if day != journey[0].date]
    if way == 1:
        landed = case.world.arrival(trip.legs[len(trip.journeys[0]) - 1])
        days = [day for day in days if day > landed]
    if not days:
        return None
    route = (journey[0].origin, journey[-1].destination)
    cabin = trip.reservation.cabin
    choice = choose(case, Search(*route, case.rng.choice(days), cabin, trip.size))
    returns = trip.journeys[1][0].date if way == 0 and len(trip.journeys) > 1 else None
    if choice and returns and choice.option.arrives_on >= returns:
        return None
    return choice


def _legs_after(trip: Trip, way: int, option: Option) -> tuple[Leg, ...]:
    turn = len(trip.journeys[0])
    return (*option.legs, *trip.legs[turn:]) if way == 0 else (*trip.legs[:turn], *option.legs)


def _ask_for_day(case: Case, trip: Trip, way: int, leg: Leg) -> str:
    named, when = case.trip(trip), case.day(leg[1])
    subject, rest = named, ""
    if len(trip.journeys) > 1:
        part = ("outbound", "return")[way]
        subject, rest = f"the {part} part of {named}", " and keep the rest as it is"
    asks = (
        f"$you want$s to move {subject} to {when} in the same cabin{rest}",
        f"$you would like to fly {subject} on {when} instead, in the same cabin{rest}",
        f"$you need$s to change the date of {subject} to {when}, stay in the same cabin{rest}",
    )
    return case.rng.choice(asks)


def _by_number(case: Case, options: Sequence[Option], search: Search) -> Choice:
    option = case.rng.choice(options)
    ((number, day),) = option.legs
    return Choice(
        option, f"flight {number} on {case.day(day)}", search.call("search_direct_flight")
    )


def _cheapest(options: Sequence[Option], search: Search) -> Choice | None:
    return _first(options, search, key=lambda option: option.price, property="the lowest price")


def _earliest(options: Sequence[Option], search: Search) -> Choice | None:
    return _first(
        options, search, key=lambda option: _minute(option), property="the earliest departure"
    )


def _latest(options: Sequence[Option], search: Search) -> Choice | None:
    return _first(
        options, search, key=lambda option: -_minute(option), property="the latest departure"
    )


def _first(
    options: Sequence[Option], search: Search, *, key: Callable[[Option], int], property: str
) -> Choice | None:
    best = min(map(key, options), default=None)
    found = [option for option in options if key(option) == best]
    if len(found) != 1:
        return None  # the customer's words must fit one option only
    is_direct = len(found[0].legs) == 1
    kind, tool = (
        ("direct flight", "search_direct_flight")
        if is_direct
        else ("one-stop connection", "search_onestop_flight")
    )
    seats = "a free seat" if search.seats == 1 else f"{search.seats} free seats"
    words = (
        f"the {kind} of that day with {property} "
        f"among those with {seats} in {cabin_words(search.cabin)}"
    )
    return Choice(found[0], words, search.call(tool))


def _minute(option: Option) -> int:
    hour, minute, _ = option.departs.split(":")
    return 60 * int(hour) + int(minute)
