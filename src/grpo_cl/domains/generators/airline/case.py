"""One customer's call as it is being made up: what was asked so far, and how things are named."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from string import Template
from typing import Any, NamedTuple, Self

from inspect_evals.tau2.airline.data_model import (
    Certificate,
    CreditCard,
    GiftCard,
    PaymentMethod,
    User,
)

from grpo_cl.domains.generators.airline.world import Leg, Trip, World

Call = tuple[str, dict[str, Any]]

CITIES = {
    "ATL": "Atlanta",
    "BOS": "Boston",
    "CLT": "Charlotte",
    "DEN": "Denver",
    "DFW": "Dallas",
    "DTW": "Detroit",
    "EWR": "Newark",
    "IAH": "Houston",
    "JFK": "New York JFK",
    "LAS": "Las Vegas",
    "LAX": "Los Angeles",
    "LGA": "New York LaGuardia",
    "MCO": "Orlando",
    "MIA": "Miami",
    "MSP": "Minneapolis",
    "ORD": "Chicago",
    "PHL": "Philadelphia",
    "PHX": "Phoenix",
    "SEA": "Seattle",
    "SFO": "San Francisco",
}
"""City names that mean one airport each."""

TO_CUSTOMER = {"you": "you", "your": "your", "s": "", "are": "are", "have": "have"}
TO_AGENT = {"you": "the customer", "your": "their", "s": "s", "are": "is", "have": "has"}

SMALLEST_TOLD = 100
"""A shorter number could stand in a reply by accident."""

CURIOUS = 0.3
"""Share of customers who ask for a number where there is one."""


class Request(NamedTuple):
    """One thing the customer asks for. Texts speak of ``$you`` and fit both readers."""

    kind: str
    label: str
    """What the details are about."""
    ask: str
    """Starts with ``$you``."""
    details: Sequence[str] = ()
    reads: Sequence[Call] = ()
    writes: Sequence[Call] = ()
    """Empty where the policy forbids what is asked."""
    trip: Trip | None = None
    charges: Mapping[str, float] = {}
    """Dollars by payment id; infinite where nothing else may move the balance."""
    told: int | None = None
    """The number the customer wants to hear."""


class Question(NamedTuple):
    """A number the customer wants to hear, and how they say so."""

    words: tuple[str, ...]
    told: int | None


class Means(NamedTuple):
    """A payment method and what the customer calls it."""

    id: str
    words: str


@dataclass(frozen=True)
class Case:
    """A customer, what they asked so far, and the chance that decides the rest."""

    world: World
    user: User
    rng: Random
    level: float
    is_spoken: bool
    """Whether the customer speaks of cities and card endings rather than codes and ids."""
    described: frozenset[str]
    """Reservations whose id the customer has forgotten."""
    requests: tuple[Request, ...] = ()

    @classmethod
    def open(cls, world: World, user: User, rng: Random, level: float) -> Self:
        """A customer who has asked for nothing yet."""
        trips = [trip for trip in world.trips[user.user_id] if trip.journeys]
        keys = [_key(trip) for trip in trips]
        described = frozenset(
            trip.id for trip in trips if rng.random() < level and keys.count(_key(trip)) == 1
        )
        return cls(world, user, rng, level, rng.random() < level, described)

    def plus(self, request: Request, *, at: int | None = None) -> Self:
        """The same call with one more request, at the end or before request ``at``."""
        place = len(self.requests) if at is None else at
        return replace(self, requests=(*self.requests[:place], request, *self.requests[place:]))

    @property
    def trips(self) -> Sequence[Trip]:
        """Every reservation of the customer."""
        return self.world.trips[self.user.user_id]

    @property
    def free_trips(self) -> Sequence[Trip]:
        """Reservations no request is about yet."""
        touched = {request.trip.id for request in self.requests if request.trip}
        return [trip for trip in self.trips if trip.id not in touched]

    @property
    def writes(self) -> Sequence[Call]:
        """The gold calls so far that change the database."""
        return [call for request in self.requests for call in request.writes]

    def shares_seats(self, legs: Sequence[Leg]) -> bool:
        """Whether an earlier request needs seats on one of these flights."""
        taken = {
            (leg["flight_number"], leg["date"])
            for _, arguments in self.writes
            for leg in arguments.get("flights", ())
        }
        return not taken.isdisjoint(legs)

    def pick(self, trips: Sequence[Trip]) -> Trip | None:
        """One of the trips, if there is one."""
        return self.rng.choice(trips) if trips else None

    def lucky(self, share: float) -> bool:
        """True in this share of the cases at full difficulty, never at none."""
        return self.rng.random() < share * self.level

    def asks_for(self, amount: int, what: str) -> "Question":
        """Now and then, the wish to hear an amount."""
        if abs(amount) < SMALLEST_TOLD or self.rng.random() > CURIOUS:
            return Question((), None)
        return Question((f"$you want$s to be told {what} in dollars",), abs(amount))

    # How the customer names things.

    def trip(self, trip: Trip) -> str:
        """A reservation by its id, or by route and date where the customer forgot it."""
        if trip.id not in self.described:
            return f"reservation {trip.id}"
        booked = trip.reservation
        kind = "one-way trip" if booked.flight_type == "one_way" else "round trip"
        route = f"from {self.place(booked.origin)} to {self.place(booked.destination)}"
        return f"the {kind} {route} that starts on {self.day(trip.starts_on)}"

    def place(self, code: str) -> str:
        """An airport."""
        return CITIES[code] if self.is_spoken else code

    def day(self, date: str) -> str:
        """A day of the only month the database has."""
        return f"May {int(date[-2:])}" if self.is_spoken else date

    def means(self, method: PaymentMethod) -> Means:
        """A payment method of the profile."""
        kind = method.source.replace("_", " ")
        if not self.is_spoken:
            return Means(method.id, f"{kind} {method.id}")
        if isinstance(method, CreditCard):
            brand = method.brand.capitalize()
            return Means(method.id, f"{brand} credit card ending in {method.last_four}")
        return Means(method.id, f"{kind} whose id ends in {method.id[-4:]}")

    # What the customer can pay with.

    def payable(self, amount: int) -> Means | None:
        """A card that can take this charge or refund, whatever the order of the requests."""
        gift_cards = [card for card in self._gift_cards if self._left(card) >= max(amount, 0)]
        fitting = [*self.credit_cards, *gift_cards]
        return self.means(self.rng.choice(fitting)) if fitting else None

    @property
    def certificates(self) -> list[Certificate]:
        """The travel certificates of the profile."""
        return [m for m in self.user.payment_methods.values() if isinstance(m, Certificate)]

    @property
    def untouched_gift_cards(self) -> list[GiftCard]:
        """Gift cards with money on them that no request has named."""
        named = {key for request in self.requests for key in request.charges}
        return [card for card in self._gift_cards if card.amount > 0 and card.id not in named]

    @property
    def credit_cards(self) -> list[CreditCard]:
        """The credit cards of the profile."""
        return [m for m in self.user.payment_methods.values() if isinstance(m, CreditCard)]

    @property
    def _gift_cards(self) -> list[GiftCard]:
        return [m for m in self.user.payment_methods.values() if isinstance(m, GiftCard)]

    def _left(self, card: GiftCard) -> float:
        # Refunds are not counted: a request must be payable in whatever order the agent works.
        return card.amount - sum(
            max(0, request.charges.get(card.id, 0)) for request in self.requests
        )


def render(text: str, voice: Mapping[str, str]) -> str:
    """A text for one of its two readers, as a sentence."""
    words = Template(text).substitute(voice)
    return f"{words[0].upper()}{words[1:]}."


def searches(legs: Sequence[tuple[str, str, str]]) -> list[Call]:
    """The searches that show today's prices of (origin, destination, date) legs."""
    return [
        ("search_direct_flight", {"origin": origin, "destination": destination, "date": date})
        for origin, destination, date in legs
    ]


def as_flights(legs: Sequence[Leg]) -> list[dict[str, str]]:
    """Legs as the tools take them."""
    return [{"flight_number": number, "date": date} for number, date in legs]


def _key(trip: Trip) -> tuple[str, str, str]:
    booked = trip.reservation
    return booked.origin, booked.destination, trip.starts_on
