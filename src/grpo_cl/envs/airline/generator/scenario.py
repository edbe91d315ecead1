"""Texts and gold calls of an airline task, written from its requests."""

import re
from collections.abc import Sequence
from random import Random

from grpo_cl.envs.airline.generator.case import (
    TO_AGENT,
    TO_CUSTOMER,
    AirlineCase,
    AirlineRequest,
    render,
)
from grpo_cl.envs.airline.generator.index import TODAY
from grpo_cl.envs.airline.generator.phrasings import (
    BACKGROUND,
    PHRASINGS,
    asked_amount,
    name_flight,
    name_trip,
    phrase_detail,
    with_placeholders,
)
from grpo_cl.envs.generation.persons import KEEP
from grpo_cl.envs.generation.requests import Call
from grpo_cl.envs.generation.tasks import TaskSpec
from grpo_cl.envs.generation.varied_texts import (
    DETAIL,
    RequestClauses,
    TextFacts,
    write_varied_texts,
)

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

ACCEPTED_REFUSALS = (
    "If something is against the rules, {you} accept that and go on with the rest",
    "{You} take{s} no for an answer and want{s} nothing in place of what is not allowed",
    "If the agent says that something is not possible, {you} do not insist on it",
)
UNKNOWN_IDS = (
    "{You} {do} not remember every reservation id",
    "{You} {do} not remember every reservation number",
    "{You} {do} not have all reservation ids at hand",
    "{You} {do} not know all ids of {your} reservations",
)
"""True also where another reservation is named by its id."""

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

MAX_TICKET_SENTENCES = 6


def write_spec(case: AirlineCase) -> TaskSpec:
    """The task in which the customer makes all requests of the case."""
    asides = _asides(case)
    answers = [str(request.answer) for request in case.requests if request.answer is not None]
    kinds = [f"{'' if request.writes else 'refuse: '}{request.kind}" for request in case.requests]
    stated = [not case.omits_detail() for _ in case.requests]
    return TaskSpec(
        purpose="; ".join(kinds),
        reason_for_call=_reason(case, stated),
        known_info=_known(case),
        unknown_info=_unknown(_count_forgotten(case)),
        task_instructions=_instructions(case, stated, asides),
        ticket=_ticket(case, asides),
        actions=_gold_calls(case),
        communicate_info=answers,
        is_refusal=not case.writes,
    )


def write_varied_spec(case: AirlineCase) -> TaskSpec:
    """The same task as ``write_spec`` makes, in varied texts."""
    spec = write_spec(case)
    name = case.user.name
    other = re.search(r"You have (another reservation, .*?)\.", spec.task_instructions)
    birthday = f"{{You}} {{was}} born on {case.user.dob}"
    accepts = any(sentence in spec.task_instructions for sentence in ACCEPTANCES)

    def draw(rng: Random) -> TextFacts:
        return TextFacts(
            f"{name.first_name} {name.last_name}",
            rng.choice(("user id", "user id", "user ID")),
            case.user.user_id,
            [_phrase(case, request, rng) for request in case.requests],
            notes=[birthday] if case.user.dob in spec.known_info else [],
            unknown=_draw_unknown(case, rng),
            remarks=[
                *([f"{{You}} {{have}} {other[1]}"] if other else []),
                *([rng.choice(ACCEPTED_REFUSALS)] if accepts else []),
            ],
            level=case.level,
        )

    return spec._replace(**write_varied_texts(draw, BACKGROUND, Random(spec.ticket))._asdict())


def _phrase(case: AirlineCase, request: AirlineRequest, rng: Random) -> RequestClauses:
    facts = {key: with_placeholders(words) for key, words in request.facts.items()}
    if request.trip is not None:
        words = name_trip(case.name_trip(request.trip), rng)
        has_begun = request.trip.starts_on <= TODAY
        facts["trip"] = words.replace("upcoming ", "") if has_begun else words
    if request.kind == "flights":
        part, trip = facts["part"], facts["trip"]
        facts["subject"] = f"the {part} part of {trip}" if part else trip
        facts["flight"] = name_flight(facts["flight"], rng)
        facts["rest"] = " and keep the rest as it is" if part else ""
    clause, *details = (
        rng.choice(PHRASINGS[_phrasing_kind(request)]).format(**facts, **KEEP).split(DETAIL)
    )
    if not {"payment", "before", "after"} & set(request.facts):
        details += [
            phrase_detail(detail, rng) for detail in request.details if not asked_amount(detail)
        ]
    elif request.kind == "bags":
        details += [phrase_detail(detail, rng) for detail in request.details if "gold" in detail]
    asked = [asked_amount(detail) for detail in request.details]
    return RequestClauses(clause, details, "".join(asked), needs_fallback=not request.writes)


def _phrasing_kind(request: AirlineRequest) -> str:
    """The kind of the request; those with several meanings are told apart by their facts."""
    if request.kind == "passenger":
        names = {"last_name": "rename", "birthday": "birthday", "born": "replace"}
        return next(kind for fact, kind in names.items() if fact in request.facts)
    if request.kind == "number of passengers":
        return "added passenger" if "person" in request.facts else "removed passenger"
    return request.kind


def _draw_unknown(case: AirlineCase, rng: Random) -> list[str]:
    return [rng.choice(UNKNOWN_IDS)] if _count_forgotten(case) else []


def _gold_calls(case: AirlineCase) -> list[Call]:
    calls: list[Call] = [("get_user_details", {"user_id": case.user.user_id})]
    seen: set[str] = set()
    for request in case.requests:
        for key in _read_reservations(case, request):
            if key not in seen:
                seen.add(key)
                calls.append(("get_reservation_details", {"reservation_id": key}))
        calls += [*request.reads, *request.writes]
    return calls


def _read_reservations(case: AirlineCase, request: AirlineRequest) -> Sequence[str]:
    trip = request.trip
    if trip is None:
        return ()
    if trip.id not in case.forgotten_ids:
        return (trip.id,)
    ids = [other.id for other in case.trips]
    return ids[: ids.index(trip.id) + 1]  # the agent reads them in order until it finds the trip


def _reason(case: AirlineCase, stated: Sequence[bool]) -> str:
    sentences: list[str] = []
    for request, at_once in zip(case.requests, stated, strict=True):
        ask = render(request.ask, TO_CUSTOMER)
        connective = case.rng.choice(CONNECTIVES) if sentences else ""
        sentences.append(connective + (_lower_first(ask) if connective else ask))
        if at_once:
            sentences += [render(detail, TO_CUSTOMER) for detail in request.details]
    return " ".join(sentences)


def _instructions(case: AirlineCase, stated: Sequence[bool], asides: Sequence[str]) -> str:
    rng = case.rng
    later = [
        render(f"about {request.label}: {'; '.join(request.details)}", TO_CUSTOMER)
        for request, at_once in zip(case.requests, stated, strict=True)
        if request.details and not at_once
    ]
    # Some tasks without forbidden requests contain this too, so that it reveals nothing.
    has_forbidden = any(not request.writes for request in case.requests)
    accepts = has_forbidden or case.chance(0.5)
    return " ".join(
        [
            *later,
            rng.choice(CONFIRMATIONS),
            *([rng.choice(ACCEPTANCES)] if accepts else []),
            rng.choice(MANNERS),
            *(render(aside, TO_CUSTOMER) for aside in asides),
        ]
    )


def _ticket(case: AirlineCase, asides: Sequence[str]) -> str:
    name = case.user.name
    caller = f"{name.first_name} {name.last_name} (user id {case.user.user_id})"
    sentences = [
        render("; ".join((request.ask, *request.details)), TO_AGENT) for request in case.requests
    ]
    sentences[0] = sentences[0].replace("The customer", caller, 1)
    sentences.append(case.rng.choice(TICKET_ENDINGS))
    num_asides = max(0, MAX_TICKET_SENTENCES - len(sentences))
    return " ".join([*sentences, *(render(aside, TO_AGENT) for aside in asides[:num_asides])])


def _known(case: AirlineCase) -> str:
    user = case.user
    name = f"{user.name.first_name} {user.name.last_name}"
    return case.rng.choice(
        (
            f"Your name is {name}. Your user id is {user.user_id}.",
            f"You are {name}. Your user id is {user.user_id}.",
            f"Your user id is {user.user_id}. Your name is {name} and you were born on {user.dob}.",
        )
    )


def _count_forgotten(case: AirlineCase) -> int:
    used = {request.trip.id for request in case.requests if request.trip}
    return len(used & case.forgotten_ids)


def _unknown(num_forgotten: int) -> str | None:
    if not num_forgotten:
        return None
    if num_forgotten == 1:
        return "You do not remember a reservation id that the agent may ask for."
    return "You do not remember the ids of the reservations you speak of by route."


def _asides(case: AirlineCase) -> list[str]:
    asides = case.rng.sample(ASIDES, int(2 * case.level + case.rng.random()))
    other = case.pick([trip for trip in case.free_trips if trip.is_open])
    if other is not None and case.chance(0.5):
        booked = other.reservation
        route = (
            f"from {case.name_airport(booked.origin)} to {case.name_airport(booked.destination)}"
        )
        asides.insert(0, f"$you $have another reservation, {route}, which stays as it is")
    return asides


def _lower_first(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]
