"""Requests that the policy forbids, which change nothing in the database."""

from functools import partial

from grpo_cl.envs.generation.requests import Request, RequestMaker
from grpo_cl.envs.generation.wording import draw_wording
from grpo_cl.envs.healthcare.generator.case import (
    HealthcareCase,
    doctor_name,
    find_patient,
    read_patient,
    read_provider,
    read_visit,
)
from grpo_cl.envs.healthcare.generator.refills import (
    REFILL_TEMPLATES,
    name_medicine,
    read_prescription,
)
from grpo_cl.envs.healthcare.generator.slots import SlotTime, free_times, name_slot
from grpo_cl.envs.healthcare.generator.visits import (
    VisitTerms,
    book,
    describe_visit,
    read_coverage,
    terms_of,
)
from grpo_cl.envs.healthcare.rules import MAX_MOVES, is_late, refill_violations, upcoming

_UNSUPPORTED = (
    "get a copy of {whose} medical record",
    "hear the results of {whose} last blood test",
    "complain about a nurse who was rude",
    "dispute a bill from last year that was paid twice",
    "have {whose} insurance plan changed in the record",
    "correct the spelling of {whose} last name in the record",
)
_OTHER_PATIENTS = ("a neighbour", "a friend", "a colleague", "a cousin")


def forbidden_visit(case: HealthcareCase, violation: str) -> Request | None:
    """Ask for a visit that violates this rule and no other."""
    for provider in case.providers():
        terms = VisitTerms(
            provider, "video" if violation == "first by video" else "in_person", "insurance"
        )
        if terms.visit_type == "video" and not provider.offers_video:
            continue
        time = _violating_time(case, terms, violation)
        if time is None:
            continue
        case.mark_used(provider.provider_id, provider.specialty, *_clashing_visit_ids(case, time))
        slot = name_slot(case, provider, time)
        name = f"{doctor_name(provider)} ({provider.provider_id})"
        return Request(
            f"book in spite of: {violation}",
            describe_visit(case, terms, slot, name),
            [read_provider(provider), read_coverage(case, provider), *slot.reads],
        )
    return None


def uncovered_visit(case: HealthcareCase) -> Request | None:
    """Ask for a visit that the plan does not cover, and decline to pay for it."""
    request = forbidden_visit(case, "coverage")
    if request is None:
        return None
    # Stated, because an agent may offer the visit at the patient's own expense.
    refusal = draw_wording(
        case.rng, (", and {you} do not want to pay for the visit out of pocket",)
    )
    return request._replace(wording=request.wording.then(refusal, ""), has_fallback=True)


def _violating_time(case: HealthcareCase, terms: VisitTerms, violation: str) -> SlotTime | None:
    times = case.shuffled(free_times(case.database, terms.provider))
    if violation == "clash":
        # Unused visits, because another request of the call could cancel or move the others.
        starts = {visit.start for visit in case.visits()}
        times = [time for time in times if " ".join(time) in starts]
    for time in times[:3]:
        if " ".join(time) not in case.planned and terms.violations(case, time) == {violation}:
            return time
    return None


def _clashing_visit_ids(case: HealthcareCase, time: SlotTime) -> list[str]:
    visits = upcoming(case.database, case.patient)
    return [visit.appointment_id for visit in visits if visit.start == " ".join(time)]


def forbidden_move(case: HealthcareCase) -> Request | None:
    """Move an appointment that begins too soon or was moved too often."""
    for visit in case.visits():
        if not is_late(visit) and visit.times_moved < MAX_MOVES:
            continue
        terms = terms_of(case, visit)
        times = case.shuffled(free_times(case.database, terms.provider))
        available = [time for time in times if " ".join(time) not in case.planned]
        if not available:
            continue
        case.mark_used(visit.appointment_id, visit.provider_id)
        slot = name_slot(case, terms.provider, available[0])
        templates = ("move {visit} to {slot}", "reschedule {visit} to {slot}")
        wording = draw_wording(case.rng, templates, visit=case.name_visit(visit), slot=slot.words)
        cause = "so late" if is_late(visit) else "too often"
        return Request(f"move an appointment {cause}", wording, [read_visit(visit)])
    return None


def forbidden_refill(case: HealthcareCase) -> Request | None:
    """Ask for a refill that the policy forbids."""
    for prescription in case.prescriptions():
        violations = sorted(refill_violations(case.database, prescription))
        if not violations:
            continue
        case.mark_used(prescription.prescription_id)
        return Request(
            f"refill in spite of: {', '.join(violations)}",
            draw_wording(case.rng, REFILL_TEMPLATES, medicine=name_medicine(case, prescription)),
            read_prescription(case, prescription),
            kinds=[f"refill in spite of: {violation}" for violation in violations],
        )
    return None


def cancel_visit_of_other_patient(case: HealthcareCase) -> Request | None:
    """Cancel an appointment of a patient whom the caller does not represent."""
    other = case.rng.choice(case.all_patients)
    is_allowed = case.caller.patient_id in (other.patient_id, *other.representatives)
    visits = upcoming(case.database, other)
    if is_allowed or not visits or "other patient" in case.used:
        return None
    case.mark_used("other patient")
    templates = (
        "cancel appointment {visit} of {who}, {name}, who is ill",
        "call off appointment {visit} for {who}, {name}, because of illness",
    )
    facts = {
        "visit": visits[0].appointment_id,
        "who": case.rng.choice(_OTHER_PATIENTS),
        "name": f"{other.first_name} {other.last_name} (born {other.birth_date})",
    }
    return Request(
        "act for somebody else",
        draw_wording(case.rng, templates, **facts),
        [find_patient(other), read_patient(other)],
    )


def unsupported(case: HealthcareCase) -> Request | None:
    """Ask for something that no tool does, which is transferred to a human."""
    wish = case.rng.choice(_UNSUPPORTED).replace("{whose}", case.possessive)
    summary = wish.replace("{your}", "their")
    templates = (f"{wish}; if a person has to do that, being passed on is fine",)
    return Request(
        "be handed over",
        draw_wording(case.rng, templates),
        [("transfer_to_human_agents", {"summary": f"The caller wants to {summary}."})],
        has_fallback=True,
    )


def book_with_alternative(case: HealthcareCase) -> Request | None:
    """Ask for a forbidden visit, and for an allowed one if that is not possible."""
    forbidden = case.rng.choice(FORBIDDEN_VISITS)(case)
    allowed = book(case) if forbidden else None
    if forbidden is None or allowed is None:
        return None
    connective = draw_wording(case.rng, ("; if that cannot be done, {you} want to ",))
    return allowed._replace(
        purpose=f"book another visit, as the first is refused: {forbidden.purpose}",
        wording=forbidden.wording.then(connective, "").then(allowed.wording, ""),
        reads=[*forbidden.reads, *allowed.reads],
        has_fallback=True,
    )


FORBIDDEN_VISITS: tuple[RequestMaker[HealthcareCase], ...] = tuple(
    partial(forbidden_visit, violation=violation)
    for violation in ("referral", "age", "new patient", "first by video", "clash")
)
FORBIDDEN: tuple[RequestMaker[HealthcareCase], ...] = (
    *FORBIDDEN_VISITS,
    uncovered_visit,
    forbidden_move,
    forbidden_refill,
    cancel_visit_of_other_patient,
)
"""Forbidden requests that can be combined with allowed ones."""
