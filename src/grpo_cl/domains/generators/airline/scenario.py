"""The texts of an airline task: what the customer knows and says, and the ticket."""

from collections.abc import Sequence

from grpo_cl.domains.generators.airline.case import (
    TO_AGENT,
    TO_CUSTOMER,
    Call,
    Case,
    Request,
    render,
)
from grpo_cl.domains.generators.draft import Draft

CONNECTIVES = ("", "Also, ", "Besides that, ", "Then there is one more thing: ", "In addition, ")

CONFIRMATIONS = (
    "You say yes when the agent has listed the details and asks you to confirm.",
    "You confirm each step with a clear yes as soon as its details are right.",
    "If the agent reads back what you asked for, you agree to it.",
)

MANNERS = (
    "You are polite and keep your answers short.",
    "You are in a hurry and a little impatient.",
    "You only answer what you are asked.",
    "You are friendly and like to chat.",
    "You are calm and to the point.",
    "You are nervous about getting something wrong.",
    "You mention everything you want at once.",
    "You bring up one wish after the other.",
)

ACCEPTANCES = (
    "If something you ask for is against the rules, you accept that, want nothing else in its "
    "place that you have not named, and go on with the rest.",
    "You take no for an answer: what is not allowed stays as it is, and you want no substitute.",
)

TICKET_ENDINGS = (
    "All of this is confirmed by the customer; whatever the policy rules out stays undone.",
    "The customer agrees to the resulting charges and wants no substitute for what is not allowed.",
)

ASIDES: tuple[str, ...] = (
    "$you once flew with this airline when a whole school class sang on board",
    "$you $have a dog that does not travel this time",
    "$you prefer$s aisle seats but know$s that seats are not part of this",
    "$you $are writing from a noisy café",
    "$you will move to another town next year",
    "$you recently read that the airline bought new aircraft",
    "$you think$s about learning to fly",
    "$you had to wait for a long time the last time $you called",
    "$you collect$s boarding passes",
    "$you $have a cousin who works for another airline",
)

TICKET_SENTENCES = 6


def write_up(case: Case) -> Draft:
    """The task as the customer lives it and as a colleague would note it down."""
    asides = _asides(case)
    forgotten = _forgotten(case)
    told = [str(request.told) for request in case.requests if request.told is not None]
    kinds = [f"{'' if request.writes else 'refuse: '}{request.kind}" for request in case.requests]
    stated = [case.rng.random() >= case.level for _ in case.requests]
    return Draft(
        purpose="; ".join(kinds),
        reason_for_call=_reason(case, stated),
        known_info=_known(case),
        unknown_info=_unknown(forgotten),
        task_instructions=_instructions(case, stated, asides),
        ticket=_ticket(case, asides),
        actions=_gold(case),
        communicate_info=told,
        is_refusal=not case.writes,
    )


def _gold(case: Case) -> list[Call]:
    calls: list[Call] = [("get_user_details", {"user_id": case.user.user_id})]
    seen: set[str] = set()
    for request in case.requests:
        for key in _looked_at(case, request):
            if key not in seen:
                seen.add(key)
                calls.append(("get_reservation_details", {"reservation_id": key}))
        calls += [*request.reads, *request.writes]
    return calls


def _looked_at(case: Case, request: Request) -> Sequence[str]:
    trip = request.trip
    if trip is None:
        return ()
    if trip.id not in case.described:
        return (trip.id,)
    ids = [other.id for other in case.trips]
    return ids[: ids.index(trip.id) + 1]  # nobody knows which one it is before looking


def _reason(case: Case, stated: Sequence[bool]) -> str:
    sentences: list[str] = []
    for request, at_once in zip(case.requests, stated, strict=True):
        ask = render(request.ask, TO_CUSTOMER)
        connective = case.rng.choice(CONNECTIVES) if sentences else ""
        sentences.append(connective + (_uncapital(ask) if connective else ask))
        if at_once:
            sentences += [render(detail, TO_CUSTOMER) for detail in request.details]
    return " ".join(sentences)


def _instructions(case: Case, stated: Sequence[bool], asides: Sequence[str]) -> str:
    rng = case.rng
    later = [
        render(f"about {request.label}: {'; '.join(request.details)}", TO_CUSTOMER)
        for request, at_once in zip(case.requests, stated, strict=True)
        if request.details and not at_once
    ]
    # Customers whose wishes are all met say this too, so that it gives nothing away.
    is_trapped = any(not request.writes for request in case.requests)
    accepts = is_trapped or case.lucky(0.5)
    return " ".join(
        [
            *later,
            rng.choice(CONFIRMATIONS),
            *([rng.choice(ACCEPTANCES)] if accepts else []),
            rng.choice(MANNERS),
            *(render(aside, TO_CUSTOMER) for aside in asides),
        ]
    )


def _ticket(case: Case, asides: Sequence[str]) -> str:
    name = case.user.name
    caller = f"{name.first_name} {name.last_name} (user id {case.user.user_id})"
    sentences = [
        render("; ".join((request.ask, *request.details)), TO_AGENT) for request in case.requests
    ]
    sentences[0] = sentences[0].replace("The customer", caller, 1)
    sentences.append(case.rng.choice(TICKET_ENDINGS))
    room = max(0, TICKET_SENTENCES - len(sentences))
    return " ".join([*sentences, *(render(aside, TO_AGENT) for aside in asides[:room])])


def _known(case: Case) -> str:
    user = case.user
    name = f"{user.name.first_name} {user.name.last_name}"
    return case.rng.choice(
        (
            f"Your name is {name}. Your user id is {user.user_id}.",
            f"You are {name}. Your user id is {user.user_id}.",
            f"Your user id is {user.user_id}. Your name is {name} and you were born on {user.dob}.",
        )
    )


def _forgotten(case: Case) -> int:
    named = {request.trip.id for request in case.requests if request.trip}
    return len(named & case.described)


def _unknown(forgotten: int) -> str | None:
    if not forgotten:
        return None
    if forgotten == 1:
        return "You do not remember a reservation id that the agent may ask for."
    return "You do not remember the ids of the reservations you speak of by route."


def _asides(case: Case) -> list[str]:
    asides = case.rng.sample(ASIDES, int(2 * case.level + case.rng.random()))
    other = case.pick([trip for trip in case.free_trips if trip.is_open])
    if other is not None and case.lucky(0.5):
        booked = other.reservation
        route = f"from {case.place(booked.origin)} to {case.place(booked.destination)}"
        asides.insert(0, f"$you $have another reservation, {route}, which stays as it is")
    return asides


def _uncapital(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]
