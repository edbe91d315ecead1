"""Choice of a flight that the customer's words identify, and requests to change flights."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from inspect_evals.tau2.airline.data_model import CabinClass

from grpo_cl.envs.airline.generator.case import AirlineCase, AirlineRequest, as_flights
from grpo_cl.envs.airline.generator.changes import cabin_words
from grpo_cl.envs.airline.generator.index import BOOKABLE_DAYS, Leg, Option, Trip
from grpo_cl.envs.generation.requests import Call


class FlightSearch(NamedTuple):
    """Route, day, cabin and number of seats of a flight."""

    origin: str
    destination: str
    day: str
    cabin: CabinClass
    seats: int

    def call(self, tool: str) -> Call:
        """The search as a tool call."""
        return tool, {"origin": self.origin, "destination": self.destination, "date": self.day}


class FlightChoice(NamedTuple):
    """A flight or connection, words that fit no other, and the search that finds it."""

    option: Option
    words: str
    read: Call


def choose_flight(case: AirlineCase, search: FlightSearch) -> FlightChoice | None:
    """A flight named by its number in easy tasks and by a property in hard ones."""
    query = ((search.origin, search.destination), search.day, search.cabin, search.seats)
    direct = list(case.index.direct(*query))
    is_hard = case.chance(1.0)
    if direct and is_hard:
        choice = case.rng.choice((_cheapest, _cheapest, _earliest, _latest))(direct, search)
    elif direct:
        choice = _by_number(case, direct, search)
    elif is_hard:
        choice = _cheapest(list(case.index.one_stop(*query)), search)
    else:
        choice = None
    return None if choice is None or case.shares_seats(choice.option.legs) else choice


def change_flights(case: AirlineCase) -> AirlineRequest | None:
    """Move the outbound or the return journey to another day."""
    trips = [
        trip
        for trip in case.free_trips
        if trip.is_open and trip.journeys and trip.reservation.cabin != "basic_economy"
    ]
    trip = case.pick(trips)
    if trip is None:
        return None
    direction = case.rng.randrange(len(trip.journeys))
    choice = _new_journey(case, trip, direction)
    if choice is None:
        return None
    cost = trip.size * (choice.option.price - sum(leg.price for leg in trip.journeys[direction]))
    payment = case.choose_payment(cost)
    if payment is None:
        return None
    arguments = {
        "reservation_id": trip.id,
        "cabin": trip.reservation.cabin,
        "flights": as_flights(_legs_after(trip, direction, choice.option)),
        "payment_id": payment.id,
    }
    question = case.maybe_ask(cost, "the extra charge" if cost > 0 else "the refund")
    part = ("outbound", "return")[direction] if len(trip.journeys) > 1 else ""
    when = case.name_day(choice.option.legs[0][1])
    return AirlineRequest(
        kind="flights",
        facts={"part": part, "when": when, "flight": choice.words, "payment": payment.words},
        label=f"the new flights of {case.name_trip(trip)}",
        ask=_ask_for_day(case, trip, direction, choice.option.legs[0]),
        details=(
            f"$you want$s {choice.words}",
            f"any difference in price is settled with $your {payment.words}",
            *question.words,
        ),
        reads=[choice.read],
        writes=[("update_reservation_flights", arguments)],
        trip=trip,
        charges={payment.id: cost},
        answer=question.answer,
    )


def _new_journey(case: AirlineCase, trip: Trip, direction: int) -> FlightChoice | None:
    journey = trip.journeys[direction]
    days = [day for day in BOOKABLE_DAYS if day != journey[0].date]
    if direction == 1:
        landed = case.index.arrival(trip.legs[len(trip.journeys[0]) - 1])
        days = [day for day in days if day > landed]
    if not days:
        return None
    route = (journey[0].origin, journey[-1].destination)
    cabin = trip.reservation.cabin
    choice = choose_flight(case, FlightSearch(*route, case.rng.choice(days), cabin, trip.size))
    returns = trip.journeys[1][0].date if direction == 0 and len(trip.journeys) > 1 else None
    if choice and returns and choice.option.arrives_on >= returns:
        return None
    return choice


def _legs_after(trip: Trip, direction: int, option: Option) -> tuple[Leg, ...]:
    turn = len(trip.journeys[0])
    return (
        (*option.legs, *trip.legs[turn:]) if direction == 0 else (*trip.legs[:turn], *option.legs)
    )


def _ask_for_day(case: AirlineCase, trip: Trip, direction: int, leg: Leg) -> str:
    trip_name, when = case.name_trip(trip), case.name_day(leg[1])
    subject, rest = trip_name, ""
    if len(trip.journeys) > 1:
        part = ("outbound", "return")[direction]
        subject, rest = f"the {part} part of {trip_name}", " and keep the rest as it is"
    asks = (
        f"$you want$s to move {subject} to {when} in the same cabin{rest}",
        f"$you would like to fly {subject} on {when} instead, in the same cabin{rest}",
        f"$you need$s to change the date of {subject} to {when}, stay in the same cabin{rest}",
    )
    return case.rng.choice(asks)


def _by_number(case: AirlineCase, options: Sequence[Option], search: FlightSearch) -> FlightChoice:
    option = case.rng.choice(options)
    ((number, day),) = option.legs
    return FlightChoice(
        option, f"flight {number} on {case.name_day(day)}", search.call("search_direct_flight")
    )


def _cheapest(options: Sequence[Option], search: FlightSearch) -> FlightChoice | None:
    return _first(options, search, key=lambda option: option.price, property="the lowest price")


def _earliest(options: Sequence[Option], search: FlightSearch) -> FlightChoice | None:
    return _first(
        options, search, key=lambda option: _minute(option), property="the earliest departure"
    )


def _latest(options: Sequence[Option], search: FlightSearch) -> FlightChoice | None:
    return _first(
        options, search, key=lambda option: -_minute(option), property="the latest departure"
    )


def _first(
    options: Sequence[Option], search: FlightSearch, *, key: Callable[[Option], int], property: str
) -> FlightChoice | None:
    best = min(map(key, options), default=None)
    matches = [option for option in options if key(option) == best]
    if len(matches) != 1:
        return None  # the customer's words must fit one option only
    is_direct = len(matches[0].legs) == 1
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
    return FlightChoice(matches[0], words, search.call(tool))


def _minute(option: Option) -> int:
    hour, minute, _ = option.departs.split(":")
    return 60 * int(hour) + int(minute)
