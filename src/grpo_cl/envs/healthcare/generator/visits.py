"""Allowed requests about appointments."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from grpo_cl.envs.generation.requests import Call, Question, Request
from grpo_cl.envs.generation.wording import Wording, draw_wording, format_amount
from grpo_cl.envs.healthcare.database import Appointment, Patient, Provider
from grpo_cl.envs.healthcare.generator.case import (
    HealthcareCase,
    clinic_question,
    doctor_name,
    read_visit,
)
from grpo_cl.envs.healthcare.generator.slots import Slot, SlotTime, choose_slot
from grpo_cl.envs.healthcare.rules import (
    MAX_MOVES,
    ProposedVisit,
    cancellation_fee,
    is_covered,
    is_late,
    visit_violations,
)

REASONS = {
    "no longer needed": ("it is no longer needed", "there is no need for it any more"),
    "schedule conflict": (
        "something else is in the calendar at that time",
        "there is another engagement at that time",
    ),
    "illness": ("{subject} ill", "{subject} too ill to come"),
}
TYPES = {"in_person": "an in-person visit", "video": "a video visit"}
PAYMENTS = {
    "insurance": "through {whose} insurance",
    "self_pay": "at {your} own expense, not through insurance",
}
_BOOK_TEMPLATES = (
    "book {visit}{whom} with {provider} {slot}, {paid}",
    "have {visit}{whom} with {provider} {slot}, {paid}",
    "schedule {visit}{whom} with {provider} {slot}, {paid}",
)
_MOVE_TEMPLATES = (
    "move {visit} to {slot}",
    "reschedule {visit} to {slot}",
    "change {visit} to {slot}",
)
_CANCEL_TEMPLATES = (
    "cancel {visit} because {why}",
    "call off {visit} because {why}",
    "have {visit} cancelled, since {why}",
)


SELF_PAY_SHARE = 0.2
"""Probability of keeping a provider that the plan does not cover."""


class VisitTerms(NamedTuple):
    """Provider, visit type and payment of a visit."""

    provider: Provider
    visit_type: str
    payment: str

    def violations(self, case: HealthcareCase, time: SlotTime) -> set[str]:
        """The rules that this visit of the case's patient at that time violates."""
        visit = ProposedVisit(self.provider, *time, self.visit_type, self.payment)
        return visit_violations(case.database, case.patient, visit)


def book(case: HealthcareCase) -> Request | None:
    """Book a visit that the policy allows."""
    for provider in case.providers()[:12]:
        terms = _terms_for(case, provider)
        if terms.payment == "self_pay" and case.rng.random() > SELF_PAY_SHARE:
            continue
        slot = choose_slot(case, provider, partial(terms.violations, case))
        if slot is not None:
            return booking_request(case, terms, slot)
    return None


def _terms_for(case: HealthcareCase, provider: Provider) -> VisitTerms:
    is_seen = provider.provider_id in case.patient.providers_seen
    is_video = provider.offers_video and is_seen and case.rng.random() < 0.4
    plan = case.database.plans[case.patient.plan_id]
    payment = "insurance" if is_covered(plan, provider) else "self_pay"
    return VisitTerms(provider, "video" if is_video else "in_person", payment)


def booking_request(case: HealthcareCase, terms: VisitTerms, slot: Slot) -> Request:
    """The request to book the visit."""
    provider = terms.provider
    case.mark_used(provider.provider_id, provider.specialty)
    words, search = name_provider(case, terms, slot.date)
    arguments = {
        "patient_id": case.patient.patient_id,
        "provider_id": provider.provider_id,
        "date": slot.date,
        "time": slot.time,
        "visit_type": terms.visit_type,
        "payment": terms.payment,
    }
    return Request(
        "book a visit",
        describe_visit(case, terms, slot, words),
        [*search, read_coverage(case, provider), *slot.reads],
        [("schedule_appointment", arguments)],
        questions=[_price_question(case, terms), clinic_question(case, provider)],
    )


def describe_visit(case: HealthcareCase, terms: VisitTerms, slot: Slot, provider: str) -> Wording:
    """The request for a visit with ``provider`` in words."""
    facts = {
        "visit": TYPES[terms.visit_type],
        "whom": case.recipient,
        "provider": provider,
        "slot": slot.at,
        "paid": PAYMENTS[terms.payment].format(whose=case.possessive, your="{your}"),
    }
    return draw_wording(case.rng, _BOOK_TEMPLATES, **facts)


def read_coverage(case: HealthcareCase, provider: Provider) -> Call:
    """The call that reads whether the patient's plan covers the provider."""
    arguments = {"patient_id": case.patient.patient_id, "provider_id": provider.provider_id}
    return "check_coverage", arguments


def name_provider(case: HealthcareCase, terms: VisitTerms, day: str) -> tuple[str, Sequence[Call]]:
    """The provider by id, by name, or as the only bookable provider, and the search for it."""
    provider = terms.provider
    if not case.omits_detail():
        return f"{doctor_name(provider)} ({provider.provider_id})", ()
    criteria = {"specialty": provider.specialty, "city": provider.city}
    language = _unique_language(case, terms, day) if case.omits_detail() else None
    if language is None:
        words = f"{doctor_name(provider)} from {provider.specialty} in {provider.city}"
        return words, [("search_providers", criteria)]
    criteria |= {"language": language} if language else {}
    kind = f"{language}-speaking {provider.specialty}" if language else provider.specialty
    words = f"the {kind} provider in {provider.city} who may be booked for this"
    return words, [("search_providers", criteria)]


def _unique_language(case: HealthcareCase, terms: VisitTerms, day: str) -> str | None:
    """A language that no other bookable provider speaks; empty if there is no other provider."""
    if terms.payment == "self_pay":
        return None
    provider = terms.provider
    bookable = [
        other
        for other in case.database.providers.values()
        if (other.specialty, other.city) == (provider.specialty, provider.city)
        and (terms.visit_type == "in_person" or other.offers_video)
        and not terms._replace(provider=other).violations(case, (day, ""))
    ]
    if len(bookable) == 1:
        return ""
    language = provider.languages[-1]
    return language if sum(language in other.languages for other in bookable) == 1 else None


def _price_question(case: HealthcareCase, terms: VisitTerms) -> Question:
    provider, reads = terms.provider, [read_coverage(case, terms.provider)]
    if terms.payment == "self_pay":
        return Question(
            "the exact price of the visit", format_amount(provider.self_pay_price), reads
        )
    copay = case.database.plans[case.patient.plan_id].copays[provider.specialty]
    return Question("the exact copay for the visit", format_amount(copay), reads)


def move(case: HealthcareCase) -> Request | None:
    """Move an appointment that is more than a day away."""
    for visit in case.visits():
        if is_late(visit) or visit.times_moved >= MAX_MOVES:
            continue
        terms = terms_of(case, visit)
        case.mark_used(visit.appointment_id)
        slot = choose_slot(case, terms.provider, partial(terms.violations, case))
        if slot is None:
            continue
        case.mark_used(visit.provider_id)
        arguments = {"appointment_id": visit.appointment_id, "date": slot.date, "time": slot.time}
        return Request(
            "move an appointment",
            draw_wording(case.rng, _MOVE_TEMPLATES, visit=case.name_visit(visit), slot=slot.words),
            [read_visit(visit), *slot.reads],
            [("reschedule_appointment", arguments)],
            questions=[clinic_question(case, terms.provider)],
        )
    return None


def terms_of(case: HealthcareCase, visit: Appointment) -> VisitTerms:
    """Provider, visit type and payment of an appointment."""
    return VisitTerms(case.provider_of(visit), visit.visit_type, visit.payment)


def cancel(case: HealthcareCase) -> Request | None:
    """Cancel an appointment, with a fee if one applies."""
    for visit in case.visits():
        if is_late(visit) and "late" in case.used:
            continue  # the first late cancellation decides on the fee of the second
        reason = case.rng.choice(sorted(REASONS))
        case.mark_used(
            visit.appointment_id, visit.provider_id, *(["late"] if is_late(visit) else [])
        )
        why = case.rng.choice(REASONS[reason]).format(subject=case.subject_words)
        wording = draw_wording(case.rng, _CANCEL_TEMPLATES, visit=case.name_visit(visit), why=why)
        if is_late(visit):
            fee = draw_wording(
                case.rng, (", with the late fee if there is one", ", whatever it costs")
            )
            wording = wording.then(fee, "")
        return Request(
            "cancel an appointment",
            wording,
            [read_visit(visit)],
            [cancel_call(case.patient, visit, reason)],
        )
    return None


def cancel_call(patient: Patient, visit: Appointment, reason: str) -> Call:
    """The call that cancels the appointment with the fee that applies."""
    arguments = {
        "appointment_id": visit.appointment_id,
        "reason": reason,
        "fee": cancellation_fee(patient, visit, reason),
    }
    return "cancel_appointment", arguments


def rebook(case: HealthcareCase) -> Request | None:
    """Cancel an appointment that is too soon to be moved, and book another time."""
    for visit in case.visits():
        if not is_late(visit) or "late" in case.used:
            continue
        terms = terms_of(case, visit)
        case.mark_used(visit.appointment_id)
        slot = choose_slot(case, terms.provider, partial(terms.violations, case))
        if slot is None:
            continue
        case.mark_used("late")
        move_wording = draw_wording(
            case.rng, _MOVE_TEMPLATES, visit=case.name_visit(visit), slot=slot.words
        )
        templates = (
            "if it is too late for that, {you} want it cancelled because of a schedule conflict, "
            "with the late fee if there is one, and the new time booked as "
            "{visit} with the same provider{whom}, {paid}",
        )
        paid = PAYMENTS[terms.payment].format(whose=case.possessive, your="{your}")
        facts = {"visit": TYPES[terms.visit_type], "whom": case.recipient, "paid": paid}
        request = booking_request(case, terms, slot)
        return request._replace(
            purpose="cancel an appointment and book another",
            wording=move_wording.then(draw_wording(case.rng, templates, **facts), "; "),
            reads=[read_visit(visit), read_coverage(case, terms.provider), *slot.reads],
            writes=[cancel_call(case.patient, visit, "schedule conflict"), *request.writes],
            has_fallback=True,
        )
    return None
