"""Requests that the clinics' policy forbids; answering them changes nothing."""

from collections.abc import Callable
from functools import partial

from grpo_cl.domains.generators.healthcare.case import Case, Request, read_visit, title
from grpo_cl.domains.generators.healthcare.errands import (
    REFILL,
    name_medicine,
    prescription_reads,
)
from grpo_cl.domains.generators.healthcare.slots import Time, free_times, name_slot
from grpo_cl.domains.generators.healthcare.visits import (
    Offer,
    book,
    coverage_read,
    offer_of,
    visit_words,
)
from grpo_cl.domains.generators.healthcare.wording import append, word
from grpo_cl.domains.healthcare.database import Provider
from grpo_cl.domains.healthcare.rules import MOST_MOVES, is_late, refill_objections, upcoming

Trap = Callable[[Case], Request | None]

_UNOFFERED = (
    "get a copy of {whose} medical record",
    "hear the results of {whose} last blood test",
    "complain about a nurse who was rude",
    "dispute a bill from last year that was paid twice",
    "have {whose} insurance plan changed in the record",
    "correct the spelling of {whose} last name in the record",
)
_STRANGERS = ("a neighbour", "a friend", "a colleague", "a cousin")


def forbidden_visit(case: Case, objection: str) -> Request | None:
    """Ask for a visit to which there is exactly this objection."""
    for provider in case.providers():
        offer = Offer(
            provider, "video" if objection == "first by video" else "in_person", "insurance"
        )
        if offer.visit_type == "video" and not provider.offers_video:
            continue
        time = _objectionable(case, offer, objection)
        if time is None:
            continue
        case.claim(provider.provider_id, provider.specialty, *_in_the_way(case, time))
        slot = name_slot(case, provider, time)
        name = f"{title(provider)} ({provider.provider_id})"
        return Request(
            f"book in spite of: {objection}",
            visit_words(case, offer, slot, name),
            [_look_at(provider), coverage_read(case, provider), *slot.reads],
        )
    return None


def uncovered_visit(case: Case) -> Request | None:
    """Ask for a visit that the plan does not pay for, and refuse to pay."""
    request = forbidden_visit(case, "coverage")
    if request is None:
        return None
    # Said outright, as an agent may well offer it.
    refusal = word(case.rng, (", and {you} do not want to pay for the visit out of pocket",))
    return request._replace(wording=append(request.wording, "", refusal), is_final=True)


def _objectionable(case: Case, offer: Offer, objection: str) -> Time | None:
    times = case.shuffled(free_times(case.database, offer.provider))
    if objection == "clash":
        kept = {v.start for v in case.visits()}  # nothing in this call takes these away
        times = [time for time in times if " ".join(time) in kept]
    for time in times[:3]:
        if " ".join(time) not in case.planned and offer.objections(case, time) == {objection}:
            return time
    return None


def _in_the_way(case: Case, time: Time) -> list[str]:
    visits = upcoming(case.database, case.patient)
    return [visit.appointment_id for visit in visits if visit.start == " ".join(time)]


def _look_at(provider: Provider) -> tuple[str, dict[str, str]]:
    return "get_provider_info", {"provider_id": provider.provider_id}


def forbidden_move(case: Case) -> Request | None:
    """Move an appointment that begins too soon or was moved too often."""
    for visit in case.visits():
        if not is_late(visit) and visit.times_moved < MOST_MOVES:
            continue
        offer = offer_of(case, visit)
        times = case.shuffled(free_times(case.database, offer.provider))
        fitting = [time for time in times if " ".join(time) not in case.planned]
        if not fitting:
            continue
        case.claim(visit.appointment_id, visit.provider_id)
        slot = name_slot(case, offer.provider, fitting[0])
        templates = ("move {visit} to {slot}", "reschedule {visit} to {slot}")
        wording = word(case.rng, templates, visit=case.name_visit(visit), slot=slot.words)
        why = "so late" if is_late(visit) else "too often"
        return Request(f"move an appointment {why}", wording, [read_visit(visit)])
    return None


def forbidden_refill(case: Case) -> Request | None:
    """Ask for a refill that is not due or not allowed."""
    for prescription in case.prescriptions():
        found = refill_objections(case.database, prescription)
        if not found:
            continue
        case.claim(prescription.prescription_id)
        return Request(
            f"refill in spite of: {', '.join(sorted(found))}",
            word(case.rng, REFILL, medicine=name_medicine(case, prescription)),
            prescription_reads(case, prescription),
        )
    return None


def strange_visit(case: Case) -> Request | None:
    """Cancel an appointment of somebody for whom the caller may not act."""
    other = case.rng.choice(case.strangers)
    is_allowed = case.caller.patient_id in (other.patient_id, *other.representatives)
    visits = upcoming(case.database, other)
    if is_allowed or not visits or "stranger" in case.used:
        return None
    case.claim("stranger")
    templates = (
        "cancel appointment {visit} of {who}, {name}, who is ill",
        "call off appointment {visit} for {who}, {name}, because of illness",
    )
    facts = {
        "visit": visits[0].appointment_id,
        "who": case.rng.choice(_STRANGERS),
        "name": f"{other.first_name} {other.last_name} (born {other.birth_date})",
    }
    reads = [("get_patient_info", {"patient_id": other.patient_id})]
    born = {
        "first_name": other.first_name,
        "last_name": other.last_name,
        "birth_date": other.birth_date,
    }
    return Request(
        "act for somebody else",
        word(case.rng, templates, **facts),
        [("find_patient_by_name_and_birth_date", born), *reads],
    )


def unoffered(case: Case) -> Request | None:
    """Ask for something no tool does, which is handed to a person."""
    wish = case.rng.choice(_UNOFFERED).replace("{whose}", case.own)
    summary = wish.replace("{your}", "their")
    templates = (f"{wish}; if a person has to do that, being passed on is fine",)
    return Request(
        "be handed over",
        word(case.rng, templates),
        [("transfer_to_human_agents", {"summary": f"The caller wants to {summary}."})],
        is_final=True,
    )


def either(case: Case) -> Request | None:
    """Ask for a visit that is forbidden, and for another one in its place."""
    wish = case.rng.choice(VISIT_TRAPS)(case)
    other = book(case) if wish else None
    if wish is None or other is None:
        return None
    bridge = word(case.rng, ("; if that cannot be done, {you} want to ",))
    return other._replace(
        purpose=f"book another visit, as the first is refused: {wish.purpose}",
        wording=append(append(wish.wording, "", bridge), "", other.wording),
        reads=[*wish.reads, *other.reads],
        is_final=True,
    )


VISIT_TRAPS: tuple[Trap, ...] = tuple(
    partial(forbidden_visit, objection=objection)
    for objection in ("referral", "age", "new patient", "first by video", "clash")
)
TRAPS: tuple[Trap, ...] = (
    *VISIT_TRAPS,
    uncovered_visit,
    forbidden_move,
    forbidden_refill,
    strange_visit,
)
"""Forbidden requests that can stand beside allowed ones."""
