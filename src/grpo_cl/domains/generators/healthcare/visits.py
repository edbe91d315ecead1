"""Requests the clinics grant about appointments."""

from collections.abc import Sequence
from typing import NamedTuple

from grpo_cl.domains.generators.healthcare.case import (
    Call,
    Case,
    Question,
    Request,
    clinic_question,
    read_visit,
    title,
)
from grpo_cl.domains.generators.healthcare.slots import Slot, Time, choose_slot
from grpo_cl.domains.generators.healthcare.wording import Wording, append, word
from grpo_cl.domains.healthcare.database import Appointment, Patient, Provider
from grpo_cl.domains.healthcare.rules import (
    MOST_MOVES,
    Visit,
    fee_due,
    is_covered,
    is_late,
    objections,
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
_BOOK = (
    "book {visit}{whom} with {provider} {slot}, {paid}",
    "have {visit}{whom} with {provider} {slot}, {paid}",
    "schedule {visit}{whom} with {provider} {slot}, {paid}",
)
_MOVE = (
    "move {visit} to {slot}",
    "reschedule {visit} to {slot}",
    "change {visit} to {slot}",
)
_CANCEL = (
    "cancel {visit} because {why}",
    "call off {visit} because {why}",
    "have {visit} cancelled, since {why}",
)


SELF_PAY_SHARE = 0.2
"""How often a provider is wanted whom the plan does not cover."""


class Offer(NamedTuple):
    """A provider, and how a visit to them takes place."""

    provider: Provider
    visit_type: str
    payment: str

    def objections(self, case: Case, time: Time) -> set[str]:
        """Why the policy forbids this visit of the case's patient at that time."""
        visit = Visit(self.provider, *time, self.visit_type, self.payment)
        return objections(case.database, case.patient, visit)


def book(case: Case) -> Request | None:
    """Book a visit to which nothing is to be objected."""
    for provider in case.providers()[:12]:
        offer = _offer(case, provider)
        if offer.payment == "self_pay" and case.rng.random() > SELF_PAY_SHARE:
            continue
        slot = choose_slot(case, provider, lambda time, made=offer: made.objections(case, time))
        if slot is not None:
            return booked(case, offer, slot)
    return None


def _offer(case: Case, provider: Provider) -> Offer:
    is_seen = provider.provider_id in case.patient.providers_seen
    is_video = provider.offers_video and is_seen and case.rng.random() < 0.4
    plan = case.database.plans[case.patient.plan_id]
    payment = "insurance" if is_covered(plan, provider) else "self_pay"
    return Offer(provider, "video" if is_video else "in_person", payment)


def booked(case: Case, offer: Offer, slot: Slot) -> Request:
    """The request for a visit that may be booked."""
    provider = offer.provider
    case.claim(provider.provider_id, provider.specialty)
    words, search = name_provider(case, offer, slot.date)
    write = {
        "patient_id": case.patient.patient_id,
        "provider_id": provider.provider_id,
        "date": slot.date,
        "time": slot.time,
        "visit_type": offer.visit_type,
        "payment": offer.payment,
    }
    return Request(
        "book a visit",
        visit_words(case, offer, slot, words),
        [*search, coverage_read(case, provider), *slot.reads],
        [("schedule_appointment", write)],
        questions=[_price_question(case, offer), clinic_question(case, provider)],
    )


def visit_words(case: Case, offer: Offer, slot: Slot, provider: str) -> Wording:
    """A visit with ``provider`` in the caller's words."""
    facts = {
        "visit": TYPES[offer.visit_type],
        "whom": case.whom,
        "provider": provider,
        "slot": slot.at,
        "paid": PAYMENTS[offer.payment].format(whose=case.own, your="{your}"),
    }
    return word(case.rng, _BOOK, **facts)


def coverage_read(case: Case, provider: Provider) -> Call:
    """The call that shows what the patient's plan says to the provider."""
    given = {"patient_id": case.patient.patient_id, "provider_id": provider.provider_id}
    return "check_coverage", given


def name_provider(case: Case, offer: Offer, day: str) -> tuple[str, Sequence[Call]]:
    """The provider by id, by name and specialty, or as the only one who will do."""
    provider = offer.provider
    if not case.hides():
        return f"{title(provider)} ({provider.provider_id})", ()
    wanted = {"specialty": provider.specialty, "city": provider.city}
    mark = _only_mark(case, offer, day) if case.hides() else None
    if mark is None:
        words = f"{title(provider)} from {provider.specialty} in {provider.city}"
        return words, [("search_providers", wanted)]
    wanted |= {"language": mark} if mark else {}
    kind = f"{mark}-speaking {provider.specialty}" if mark else provider.specialty
    words = f"the {kind} provider in {provider.city} who may be booked for this"
    return words, [("search_providers", wanted)]


def _only_mark(case: Case, offer: Offer, day: str) -> str | None:
    """The language that leaves no other provider in the city, empty if none need be named."""
    if offer.payment == "self_pay":
        return None
    mine = offer.provider
    rivals = [
        each
        for each in case.database.providers.values()
        if (each.specialty, each.city) == (mine.specialty, mine.city)
        and (offer.visit_type == "in_person" or each.offers_video)
        and not offer._replace(provider=each).objections(case, (day, ""))
    ]
    if len(rivals) == 1:
        return ""
    language = mine.languages[-1]
    return language if sum(language in each.languages for each in rivals) == 1 else None


def _price_question(case: Case, offer: Offer) -> Question:
    provider, reads = offer.provider, [coverage_read(case, offer.provider)]
    if offer.payment == "self_pay":
        return Question("the exact price of the visit", _number(provider.self_pay_price), reads)
    copay = case.database.plans[case.patient.plan_id].copays[provider.specialty]
    return Question("the exact copay for the visit", _number(copay), reads)


def _number(amount: float) -> str:
    # An agent may write 82.5 or 82.50; the shorter is part of both.
    return f"{amount:.2f}".rstrip("0").rstrip(".")


def move(case: Case) -> Request | None:
    """Move an appointment that is far enough away."""
    for visit in case.visits():
        if is_late(visit) or visit.times_moved >= MOST_MOVES:
            continue
        offer = offer_of(case, visit)
        case.claim(visit.appointment_id)
        slot = choose_slot(case, offer.provider, lambda t, made=offer: made.objections(case, t))
        if slot is None:
            continue
        case.claim(visit.provider_id)
        given = {"appointment_id": visit.appointment_id, "date": slot.date, "time": slot.time}
        return Request(
            "move an appointment",
            word(case.rng, _MOVE, visit=case.name_visit(visit), slot=slot.words),
            [read_visit(visit), *slot.reads],
            [("reschedule_appointment", given)],
            questions=[clinic_question(case, offer.provider)],
        )
    return None


def offer_of(case: Case, visit: Appointment) -> Offer:
    """How an appointment takes place."""
    return Offer(case.provider_of(visit), visit.visit_type, visit.payment)


def cancel(case: Case) -> Request | None:
    """Cancel an appointment, with a fee where one is due."""
    for visit in case.visits():
        if is_late(visit) and "late" in case.used:
            continue  # the first late cancellation decides on the fee of the second
        reason = case.rng.choice(sorted(REASONS))
        case.claim(visit.appointment_id, visit.provider_id, *(["late"] if is_late(visit) else []))
        why = case.rng.choice(REASONS[reason]).format(subject=case.subject)
        wording = word(case.rng, _CANCEL, visit=case.name_visit(visit), why=why)
        if is_late(visit):
            fee = word(case.rng, (", with the late fee if there is one", ", whatever it costs"))
            wording = append(wording, "", fee)
        return Request(
            "cancel an appointment",
            wording,
            [read_visit(visit)],
            [cancellation(case.patient, visit, reason)],
        )
    return None


def cancellation(patient: Patient, visit: Appointment, reason: str) -> Call:
    """The call that cancels the appointment with the fee that is due."""
    given = {
        "appointment_id": visit.appointment_id,
        "reason": reason,
        "fee": fee_due(patient, visit, reason),
    }
    return "cancel_appointment", given


def rebook(case: Case) -> Request | None:
    """Cancel an appointment that is too close to be moved, and book another time."""
    for visit in case.visits():
        if not is_late(visit) or "late" in case.used:
            continue
        offer = offer_of(case, visit)
        case.claim(visit.appointment_id)
        slot = choose_slot(case, offer.provider, lambda t, made=offer: made.objections(case, t))
        if slot is None:
            continue
        case.claim("late")
        moved = word(case.rng, _MOVE, visit=case.name_visit(visit), slot=slot.words)
        templates = (
            "if it is too late for that, {you} want it cancelled because of a schedule conflict, "
            "with the late fee if there is one, and the new time booked as "
            "{visit} with the same provider{whom}, {paid}",
        )
        paid = PAYMENTS[offer.payment].format(whose=case.own, your="{your}")
        facts = {"visit": TYPES[offer.visit_type], "whom": case.whom, "paid": paid}
        request = booked(case, offer, slot)
        return request._replace(
            purpose="cancel an appointment and book another",
            wording=append(moved, "; ", word(case.rng, templates, **facts)),
            reads=[read_visit(visit), coverage_read(case, offer.provider), *slot.reads],
            writes=[cancellation(case.patient, visit, "schedule conflict"), *request.writes],
            is_final=True,
        )
    return None
