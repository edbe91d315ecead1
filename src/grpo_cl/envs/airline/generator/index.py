"""Read-only index of the airline database: trips, fares and the constants of the policy."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property
from typing import NamedTuple, Self

from inspect_evals.tau2.airline.data_model import (
    CabinClass,
    Flight,
    FlightDateStatusAvailable,
    FlightDB,
    Reservation,
    ReservationFlight,
    User,
)

from grpo_cl.envs.generation.customers import customers

TODAY = "2024-05-15"
DAY_AGO = "2024-05-14T15:00:00"
"""24 hours before the policy's current time, 15:00 on ``TODAY``."""

BOOKABLE_DAYS = tuple(f"2024-05-{day}" for day in range(16, 31))
CABINS: tuple[CabinClass, ...] = ("basic_economy", "economy", "business")
"""In order of the free baggage allowance."""

MEMBERSHIPS = ("regular", "silver", "gold")

BAG_FEE = 50
INSURANCE_FEE = 30

Leg = tuple[str, str]
"""A flight number and a date."""


class Option(NamedTuple):
    """A direct flight or a one-stop connection on a route and day."""

    legs: tuple[Leg, ...]
    price: int
    """Per passenger."""
    departs: str
    arrives_on: str


@dataclass(frozen=True)
class Trip:
    """A reservation and the statuses of its flights."""

    reservation: Reservation
    statuses: tuple[str, ...]

    @property
    def id(self) -> str:
        """The reservation id."""
        return self.reservation.reservation_id

    @property
    def size(self) -> int:
        """The number of passengers."""
        return len(self.reservation.passengers)

    @property
    def starts_on(self) -> str:
        """The date of the first flight."""
        return self.reservation.flights[0].date

    @property
    def legs(self) -> tuple[Leg, ...]:
        """The flights of the reservation, in order."""
        return tuple((flight.flight_number, flight.date) for flight in self.reservation.flights)

    @property
    def is_open(self) -> bool:
        """Whether all flights are in the future and can be changed."""
        return set(self.statuses) == {"available"}

    @property
    def is_flown(self) -> bool:
        """Whether a flight has landed or is in the air."""
        return not {"landed", "flying"}.isdisjoint(self.statuses)

    @property
    def is_ahead(self) -> bool:
        """Whether certainly no flight was flown; an old delayed flight may have been."""
        flights = zip(self.reservation.flights, self.statuses, strict=True)
        return not self.is_flown and all(
            flight.date >= TODAY or status == "cancelled" for flight, status in flights
        )

    @property
    def is_free_to_cancel(self) -> bool:
        """Whether the policy allows a cancellation for any reason."""
        return self.is_ahead and (
            self.reservation.created_at > DAY_AGO
            or self.reservation.cabin == "business"
            or "cancelled" in self.statuses
        )

    @property
    def is_insured(self) -> bool:
        """Whether travel insurance was bought."""
        return self.reservation.insurance == "yes"

    @property
    def paid(self) -> int:
        """The total amount paid, which a cancellation refunds."""
        return sum(payment.amount for payment in self.reservation.payment_history)

    @cached_property
    def journeys(self) -> tuple[tuple[ReservationFlight, ...], ...]:
        """The outbound and, on a round trip, the return flights; empty if origin is destination."""
        booked = self.reservation
        flights = booked.flights
        if booked.origin == booked.destination:
            return ()
        if booked.flight_type == "one_way":
            return (tuple(flights),)
        turn = 1 + next(n for n, leg in enumerate(flights) if leg.destination == booked.destination)
        return (tuple(flights[:turn]), tuple(flights[turn:]))

    def with_status(self, status: str) -> tuple[Leg, ...]:
        """The flights that have ``status``."""
        return tuple(
            leg for leg, actual in zip(self.legs, self.statuses, strict=True) if actual == status
        )


@dataclass(frozen=True)
class AirlineIndex:
    """The flights, and the customers of one split with their trips."""

    flights: Mapping[str, Flight]
    users: Sequence[User]
    trips: Mapping[str, Sequence[Trip]]
    """By user id, in the order of the profile."""
    routes: Mapping[tuple[str, str], Sequence[Flight]]
    departures: Mapping[str, Sequence[Flight]]

    @classmethod
    def build(cls, database: FlightDB, split: str) -> Self:
        """An index of the customers that belong to ``split``."""
        routes: dict[tuple[str, str], list[Flight]] = defaultdict(list)
        departures: dict[str, list[Flight]] = defaultdict(list)
        for flight in database.flights.values():
            routes[flight.origin, flight.destination].append(flight)
            departures[flight.origin].append(flight)
        users = customers(database.users, folder="airline", split=split)
        trips = {
            user.user_id: tuple(
                _trip(database, database.reservations[key]) for key in user.reservations
            )
            for user in users
        }
        return cls(database.flights, users, trips, dict(routes), dict(departures))

    def fares(self, legs: Sequence[Leg], cabin: CabinClass, seats: int) -> list[int] | None:
        """The current price of each leg; None if one has too few seats."""
        fares = [self._fare(self.flights[number], day, cabin, seats) for number, day in legs]
        prices = [price for price in fares if price is not None]
        return prices if len(prices) == len(legs) else None

    def arrival(self, leg: Leg) -> str:
        """The arrival date of a flight."""
        number, day = leg
        return _arrival(self.flights[number], day)

    def direct(
        self, route: tuple[str, str], day: str, cabin: CabinClass, seats: int
    ) -> Iterator[Option]:
        """The direct flights of a day with enough seats."""
        for flight in self.routes.get(route, ()):
            price = self._fare(flight, day, cabin, seats)
            if price is not None:
                departs = flight.scheduled_departure_time_est
                yield Option(((flight.flight_number, day),), price, departs, _arrival(flight, day))

    def one_stop(
        self, route: tuple[str, str], day: str, cabin: CabinClass, seats: int
    ) -> Iterator[Option]:
        """The one-stop connections of a day with enough seats, as the search tool finds them."""
        origin, destination = route
        for first in self.departures.get(origin, ()):
            price = self._fare(first, day, cabin, seats)
            if price is None:
                continue
            next_day = _arrival(first, day)
            for second in self.direct((first.destination, destination), next_day, cabin, seats):
                if second.departs >= first.scheduled_arrival_time_est:
                    yield Option(
                        ((first.flight_number, day), *second.legs),
                        price + second.price,
                        first.scheduled_departure_time_est,
                        second.arrives_on,
                    )

    def _fare(self, flight: Flight, day: str, cabin: CabinClass, seats: int) -> int | None:
        status = flight.dates.get(day)
        if not isinstance(status, FlightDateStatusAvailable):
            return None
        return status.prices[cabin] if status.available_seats[cabin] >= seats else None


def free_bags(user: User, cabin: CabinClass, passengers: int) -> int:
    """The number of free checked bags."""
    return passengers * (MEMBERSHIPS.index(user.membership) + CABINS.index(cabin))


def deserves_compensation(user: User, trip: Trip) -> bool:
    """Whether the policy allows compensation for a cancelled or delayed flight of this trip."""
    booked = trip.reservation
    return user.membership != "regular" or trip.is_insured or booked.cabin == "business"


def _trip(database: FlightDB, booked: Reservation) -> Trip:
    statuses = (
        database.flights[flight.flight_number].dates[flight.date].status
        for flight in booked.flights
    )
    return Trip(booked, tuple(statuses))


def _arrival(flight: Flight, day: str) -> str:
    if "+1" not in flight.scheduled_arrival_time_est:
        return day
    return (date.fromisoformat(day) + timedelta(days=1)).isoformat()
