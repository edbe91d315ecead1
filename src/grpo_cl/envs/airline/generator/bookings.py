"""Allowed requests for new reservations: passengers, flights, baggage and payments."""

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

from inspect_evals.tau2.airline.data_model import (
    CabinClass,
    Certificate,
    GiftCard,
    Passenger,
    PaymentMethod,
)

from grpo_cl.envs.airline.generator.case import AirlineCase, AirlineRequest, as_flights
from grpo_cl.envs.airline.generator.changes import bag_words, cabin_words, full_name, new_person
from grpo_cl.envs.airline.generator.flights import FlightChoice, FlightSearch, choose_flight
from grpo_cl.envs.airline.generator.index import (
    BAG_FEE,
    BOOKABLE_DAYS,
    CABINS,
    INSURANCE_FEE,
    free_bags,
)


class _Party(NamedTuple):
    people: Sequence[Passenger]
    words: str

    @property
    def size(self) -> int:
        return len(self.people)


class _Extras(NamedTuple):
    bags: int
    paid_bags: int
    is_insured: bool

    def cost(self, size: int) -> int:
        return BAG_FEE * self.paid_bags + INSURANCE_FEE * size * self.is_insured

    @property
    def words(self) -> tuple[str, ...]:
        bags = bag_words(self.bags) if self.bags else "no checked bags"
        insurance = "wanted" if self.is_insured else "not wanted"
        return (f"$you need$s {bags}", f"travel insurance is {insurance}")


class _Bill(NamedTuple):
    payments: list[dict[str, Any]]
    words: str
    charges: dict[str, float]


def book(case: AirlineCase) -> AirlineRequest | None:
    """Book a new reservation."""
    if any(name == "book_reservation" for name, _ in case.writes):
        return None  # ids of reservations are assigned in the order of the calls
    cabin = case.rng.choice(CABINS)
    party = _party(case)
    choices = _journeys(case, cabin, party.size)
    if not choices:
        return None
    extras = _extras(case, cabin, party.size)
    fare = party.size * sum(choice.option.price for choice in choices)
    total = fare + extras.cost(party.size)
    bill = _split_bill(case, total) if case.chance(0.8) else _single_bill(case, total)
    if bill is None:
        return None
    arguments = {
        "user_id": case.user.user_id,
        "origin": choices[0].read[1]["origin"],
        "destination": choices[0].read[1]["destination"],
        "flight_type": "one_way" if len(choices) == 1 else "round_trip",
        "cabin": cabin,
        "flights": as_flights([leg for choice in choices for leg in choice.option.legs]),
        "passengers": [person.model_dump() for person in party.people],
        "payment_methods": bill.payments,
        "total_baggages": extras.bags,
        "nonfree_baggages": extras.paid_bags,
        "insurance": "yes" if extras.is_insured else "no",
    }
    question = case.maybe_ask(total, "the total price")
    return AirlineRequest(
        kind="booking",
        facts={"route": _route(case, choices), "cabin": cabin_words(cabin)},
        label="the new booking",
        ask=_ask(case, choices, cabin),
        details=(
            *_flight_words(choices),
            party.words,
            *extras.words,
            bill.words,
            *question.words,
        ),
        reads=[choice.read for choice in choices],
        writes=[("book_reservation", arguments)],
        charges=bill.charges,
        answer=question.answer,
    )


def _journeys(case: AirlineCase, cabin: CabinClass, seats: int) -> list[FlightChoice]:
    airports = sorted(case.index.departures)
    origin, destination = case.rng.choice(sorted(case.index.routes))
    if case.chance(0.3):
        origin, destination = case.rng.sample(airports, 2)
    day = case.rng.choice(BOOKABLE_DAYS)
    outbound = choose_flight(case, FlightSearch(origin, destination, day, cabin, seats))
    if outbound is None or case.rng.random() < 0.6:
        return [outbound] if outbound else []
    later = [day for day in BOOKABLE_DAYS if day > outbound.option.arrives_on]
    if not later:
        return []
    inbound = choose_flight(
        case, FlightSearch(destination, origin, case.rng.choice(later), cabin, seats)
    )
    return [outbound, inbound] if inbound else []


def _party(case: AirlineCase) -> _Party:
    user = case.user
    customer = Passenger(
        first_name=user.name.first_name, last_name=user.name.last_name, dob=user.dob
    )
    saved = [customer, *user.saved_passengers]
    people = {full_name(customer): customer} if case.rng.random() < 0.8 else {}
    size = case.rng.randint(1, 2) + (case.rng.randint(0, 2) if case.chance(1.0) else 0)
    while len(people) < size:
        person = case.rng.choice(saved) if case.rng.random() < 0.4 else new_person(case)
        people.setdefault(full_name(person), person)
    described = [
        f"{name} ({_birth(case, person, is_known=person in saved)})"
        for name, person in people.items()
    ]
    if len(described) == 1:
        return _Party(list(people.values()), f"the only passenger is {described[0]}")
    words = f"the passengers are, in this order, {', '.join(described[:-1])} and {described[-1]}"
    return _Party(list(people.values()), words)


def _birth(case: AirlineCase, person: Passenger, *, is_known: bool) -> str:
    in_profile = is_known and case.uses_everyday_names
    return "date of birth as in $your profile" if in_profile else f"born {person.dob}"


def _extras(case: AirlineCase, cabin: CabinClass, size: int) -> _Extras:
    bags = case.rng.randint(0, 2 * size)
    paid_bags = max(0, bags - free_bags(case.user, cabin, size))
    return _Extras(bags, paid_bags, case.rng.random() < 1 / 3)


def _single_bill(case: AirlineCase, total: int) -> _Bill | None:
    covering = [certificate for certificate in case.certificates if certificate.amount >= total]
    if covering and case.rng.random() < 0.5:
        payment = case.name_payment(case.rng.choice(covering))
    else:
        payment = case.choose_payment(total)
    if payment is None:
        return None
    return _Bill(
        [{"payment_id": payment.id, "amount": total}],
        f"everything is paid with $your {payment.words}",
        {payment.id: total},
    )


def _split_bill(case: AirlineCase, total: int) -> _Bill | None:
    rng = case.rng
    certificates, cards = case.certificates, case.untouched_gift_cards
    first: list[Certificate | GiftCard] = [
        *rng.sample(certificates, min(len(certificates), rng.randint(0, 1))),
        *rng.sample(cards, min(len(cards), rng.randint(0, 2))),
    ]
    rest = total - int(sum(method.amount for method in first))
    if not first or not case.credit_cards or rest <= 0:
        return None
    last = rng.choice(case.credit_cards)
    payments = [
        *({"payment_id": method.id, "amount": int(method.amount)} for method in first),
        {"payment_id": last.id, "amount": rest},
    ]
    # The gift card balances determine the split, so no other request may change them.
    charges = {method.id: inf for method in first} | {last.id: rest}
    return _Bill(payments, _split_words(case, first, last), charges)


def _split_words(
    case: AirlineCase, first: Sequence[Certificate | GiftCard], last: PaymentMethod
) -> str:
    method_words = [f"$your {case.name_payment(method).words}" for method in first]
    words = (
        f"$you use$s up {', then '.join(method_words)}, "
        f"and the rest goes on $your {case.name_payment(last).words}"
    )
    others = [method for method in case.certificates if method not in first]
    if isinstance(first[0], Certificate) and others and case.chance(0.4):
        other = case.name_payment(case.rng.choice(others)).words
        return f"$you would add $your {other} too, but if only one certificate is allowed, {words}"
    return words


def _ask(case: AirlineCase, choices: Sequence[FlightChoice], cabin: CabinClass) -> str:
    where = _route(case, choices)
    asks = (
        f"$you want$s to book {where} in {cabin_words(cabin)}",
        f"$you would like to make a new booking: {where} in {cabin_words(cabin)}",
        f"$you need$s {where} in {cabin_words(cabin)}",
    )
    return case.rng.choice(asks)


def _route(case: AirlineCase, choices: Sequence[FlightChoice]) -> str:
    search = choices[0].read[1]
    days = [case.name_day(choice.read[1]["date"]) for choice in choices]
    route = (
        f"from {case.name_airport(search['origin'])} to {case.name_airport(search['destination'])}"
    )
    if len(days) == 1:
        return f"a one-way trip {route} on {days[0]}"
    return f"a round trip {route}, out on {days[0]} and back on {days[1]},"


def _flight_words(choices: Sequence[FlightChoice]) -> tuple[str, ...]:
    if len(choices) == 1:
        return (f"$you want$s {choices[0].words}",)
    outbound, inbound = choices
    return (
        f"on the way out $you want$s {outbound.words}",
        f"on the way back $you want$s {inbound.words}",
    )
