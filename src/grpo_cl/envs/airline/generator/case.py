"""State of an airline customer's call under construction, and how the customer names records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from string import Template
from typing import NamedTuple, Self

from inspect_evals.tau2.airline.data_model import (
    Certificate,
    CreditCard,
    GiftCard,
    PaymentMethod,
    User,
)

from grpo_cl.envs.airline.generator.index import AirlineIndex, Leg, Trip
from grpo_cl.envs.generation.requests import Call, Case

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
"""City names that identify one airport each."""

TO_CUSTOMER = {"you": "you", "your": "your", "s": "", "are": "are", "have": "have"}
TO_AGENT = {"you": "the customer", "your": "their", "s": "s", "are": "is", "have": "has"}

MIN_ASKED_AMOUNT = 100
"""A number with fewer digits could occur in a reply by accident."""

QUESTION_SHARE = 0.3
"""Share of requests with an amount in which the customer asks for it."""


class AirlineRequest(NamedTuple):
    """One request; its texts are templates over ``TO_CUSTOMER`` or ``TO_AGENT``."""

    kind: str
    label: str
    """The subject of the details."""
    ask: str
    """Starts with ``$you``."""
    details: Sequence[str] = ()
    reads: Sequence[Call] = ()
    writes: Sequence[Call] = ()
    """Empty if the policy forbids the request."""
    trip: Trip | None = None
    charges: Mapping[str, float] = {}
    """Dollars by payment id; infinite if no other request may change the balance."""
    answer: int | None = None
    """The amount that the customer asks for."""
    facts: Mapping[str, str] = {}
    """Words of the request by name, for a text that phrases it in another way."""


class AmountQuestion(NamedTuple):
    """The words of a question for an amount, and the amount; empty if nothing is asked."""

    words: tuple[str, ...]
    answer: int | None


class NamedPayment(NamedTuple):
    """A payment method and the customer's words for it."""

    id: str
    words: str


@dataclass(kw_only=True)
class AirlineCase(Case):
    """A customer and their requests so far; ``with_request`` returns an extended copy."""

    index: AirlineIndex
    user: User
    uses_everyday_names: bool
    """Whether the customer names cities and card endings instead of codes and ids."""
    forgotten_ids: frozenset[str]
    """Reservations that the customer names by route and date."""
    requests: tuple[AirlineRequest, ...] = ()

    @classmethod
    def open(cls, index: AirlineIndex, user: User, rng: Random, level: float) -> Self:
        """A customer without requests."""
        trips = [trip for trip in index.trips[user.user_id] if trip.journeys]
        keys = [_key(trip) for trip in trips]
        forgotten_ids = frozenset(
            trip.id for trip in trips if rng.random() < level and keys.count(_key(trip)) == 1
        )
        return cls(
            index=index,
            user=user,
            rng=rng,
            level=level,
            uses_everyday_names=rng.random() < level,
            forgotten_ids=forgotten_ids,
        )

    def with_request(self, request: AirlineRequest, *, at: int | None = None) -> Self:
        """A copy with one more request, at the end or before request ``at``."""
        index = len(self.requests) if at is None else at
        return replace(self, requests=(*self.requests[:index], request, *self.requests[index:]))

    @property
    def trips(self) -> Sequence[Trip]:
        """All reservations of the customer."""
        return self.index.trips[self.user.user_id]

    @property
    def free_trips(self) -> Sequence[Trip]:
        """Reservations that no request uses."""
        used = {request.trip.id for request in self.requests if request.trip}
        return [trip for trip in self.trips if trip.id not in used]

    @property
    def writes(self) -> Sequence[Call]:
        """The gold calls so far that write to the database."""
        return [call for request in self.requests for call in request.writes]

    def shares_seats(self, legs: Sequence[Leg]) -> bool:
        """Whether an earlier request uses seats on one of these flights."""
        used = {
            (leg["flight_number"], leg["date"])
            for _, arguments in self.writes
            for leg in arguments.get("flights", ())
        }
        return not used.isdisjoint(legs)

    def pick(self, trips: Sequence[Trip]) -> Trip | None:
        """A random trip; None if there is none."""
        return self.rng.choice(trips) if trips else None

    def maybe_ask(self, amount: int, what: str) -> AmountQuestion:
        """A question for an amount in a share of the cases, else an empty one."""
        if abs(amount) < MIN_ASKED_AMOUNT or not self.chance(QUESTION_SHARE):
            return AmountQuestion((), None)
        return AmountQuestion((f"$you want$s to be told {what} in dollars",), abs(amount))

    # How the customer names records.

    def name_trip(self, trip: Trip) -> str:
        """A reservation by its id, or by route and date if the customer forgot the id."""
        if trip.id not in self.forgotten_ids:
            return f"reservation {trip.id}"
        booked = trip.reservation
        kind = "one-way trip" if booked.flight_type == "one_way" else "round trip"
        route = (
            f"from {self.name_airport(booked.origin)} to {self.name_airport(booked.destination)}"
        )
        return f"the {kind} {route} that starts on {self.name_day(trip.starts_on)}"

    def name_airport(self, code: str) -> str:
        """An airport by its city or code."""
        return CITIES[code] if self.uses_everyday_names else code

    def name_day(self, date: str) -> str:
        """A day; all dates of the database are in May."""
        return f"May {int(date[-2:])}" if self.uses_everyday_names else date

    def name_payment(self, method: PaymentMethod) -> NamedPayment:
        """A payment method of the profile by its brand, kind or id."""
        kind = method.source.replace("_", " ")
        if not self.uses_everyday_names:
            return NamedPayment(method.id, f"{kind} {method.id}")
        if isinstance(method, CreditCard):
            brand = method.brand.capitalize()
            return NamedPayment(method.id, f"{brand} credit card ending in {method.last_four}")
        return NamedPayment(method.id, f"{kind} whose id ends in {method.id[-4:]}")

    # The customer's payment methods.

    def choose_payment(self, amount: int) -> NamedPayment | None:
        """A card that covers this charge or refund in any order of the requests."""
        gift_cards = [card for card in self._gift_cards if self._balance(card) >= max(amount, 0)]
        fitting = [*self.credit_cards, *gift_cards]
        return self.name_payment(self.rng.choice(fitting)) if fitting else None

    @property
    def certificates(self) -> list[Certificate]:
        """The travel certificates of the profile."""
        return [m for m in self.user.payment_methods.values() if isinstance(m, Certificate)]

    @property
    def untouched_gift_cards(self) -> list[GiftCard]:
        """Gift cards with a balance that no request uses."""
        used = {key for request in self.requests for key in request.charges}
        return [card for card in self._gift_cards if card.amount > 0 and card.id not in used]

    @property
    def credit_cards(self) -> list[CreditCard]:
        """The credit cards of the profile."""
        return [m for m in self.user.payment_methods.values() if isinstance(m, CreditCard)]

    @property
    def _gift_cards(self) -> list[GiftCard]:
        return [m for m in self.user.payment_methods.values() if isinstance(m, GiftCard)]

    def _balance(self, card: GiftCard) -> float:
        # Refunds are not counted: the agent may handle the requests in any order.
        return card.amount - sum(
            max(0, request.charges.get(card.id, 0)) for request in self.requests
        )


def render(text: str, reader: Mapping[str, str]) -> str:
    """A template as a sentence for one of its two readers."""
    words = Template(text).substitute(reader)
    return f"{words[0].upper()}{words[1:]}."


def searches(legs: Sequence[tuple[str, str, str]]) -> list[Call]:
    """The searches that return the current prices of (origin, destination, date) legs."""
    return [
        ("search_direct_flight", {"origin": origin, "destination": destination, "date": date})
        for origin, destination, date in legs
    ]


def as_flights(legs: Sequence[Leg]) -> list[dict[str, str]]:
    """Legs as tool arguments."""
    return [{"flight_number": number, "date": date} for number, date in legs]


def _key(trip: Trip) -> tuple[str, str, str]:
    booked = trip.reservation
    return booked.origin, booked.destination, trip.starts_on
