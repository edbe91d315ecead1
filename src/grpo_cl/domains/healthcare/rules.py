"""The clinics' policy as far as records decide it; the tools enforce only a part of this."""

from datetime import date, timedelta
from typing import NamedTuple

from grpo_cl.domains.healthcare.database import (
    DAY_AHEAD,
    NOW,
    TODAY,
    Appointment,
    HealthcareDB,
    Patient,
    Plan,
    Prescription,
    Provider,
    age_on,
)

MOST_MOVES = 2
"""How often one appointment may be moved."""
VISIT_DAYS = 90
"""A controlled medicine needs a visit to its prescriber within as many days."""
EARLY_DAYS = 7
"""A refill may be asked for as many days before the last one runs out."""


class Visit(NamedTuple):
    """An appointment somebody would like to have."""

    provider: Provider
    date: str
    time: str
    visit_type: str = "in_person"
    payment: str = "insurance"


def is_covered(plan: Plan, provider: Provider) -> bool:
    """Whether the plan pays for visits to the provider at all."""
    return plan.plan_id in provider.accepted_plans and provider.specialty in plan.copays


def referral_until(patient: Patient, specialty: str) -> str | None:
    """The last day of the patient's longest referral to a specialty, expired or not."""
    dates = [each.valid_until for each in patient.referrals if each.specialty == specialty]
    return max(dates, default=None)


def objections(database: HealthcareDB, patient: Patient, visit: Visit) -> set[str]:
    """Why the policy forbids the visit; empty if it may be booked."""
    provider, plan = visit.provider, database.plans[patient.plan_id]
    is_insured = visit.payment == "insurance"
    is_new = provider.provider_id not in patient.providers_seen
    until = referral_until(patient, provider.specialty)
    facts = {
        "coverage": is_insured and not is_covered(plan, provider),
        "referral": is_insured
        and provider.specialty in plan.referral_specialties
        and (until is None or until < visit.date),
        "age": not provider.min_age <= age_on(patient, visit.date) <= provider.max_age,
        "new patient": is_new and not provider.accepts_new_patients,
        "first by video": is_new and visit.visit_type == "video",
        "clash": f"{visit.date} {visit.time}" in _busy(database, patient),
    }
    return {name for name, holds in facts.items() if holds}


def _busy(database: HealthcareDB, patient: Patient) -> set[str]:
    return {each.start for each in upcoming(database, patient)}


def upcoming(database: HealthcareDB, patient: Patient) -> list[Appointment]:
    """The patient's appointments that are still to come, in order."""
    own = [database.appointments[number] for number in patient.upcoming_appointments]
    return sorted(
        (each for each in own if each.status == "scheduled" and each.start > NOW),
        key=lambda each: each.start,
    )


def is_late(appointment: Appointment) -> bool:
    """Whether the appointment begins in less than 24 hours."""
    return NOW < appointment.start < DAY_AHEAD


def fee_due(patient: Patient, appointment: Appointment, reason: str) -> int:
    """What calling the appointment off costs."""
    is_waived = reason == "illness" or not patient.late_cancellations
    return appointment.late_fee if is_late(appointment) and not is_waived else 0


def refill_objections(database: HealthcareDB, prescription: Prescription) -> set[str]:
    """Why the policy forbids a refill; empty if it may be requested."""
    last = date.fromisoformat(prescription.last_filled)
    soonest = last + timedelta(days=prescription.days_supply - EARLY_DAYS)
    facts = {
        "no refills": prescription.refills_left < 1,
        "expired": prescription.expires < TODAY,
        "discontinued": prescription.status != "active",
        "early": soonest.isoformat() > TODAY,
        "controlled": prescription.is_controlled and not _was_seen(database, prescription),
    }
    return {name for name, holds in facts.items() if holds}


def _was_seen(database: HealthcareDB, prescription: Prescription) -> bool:
    since = (date.fromisoformat(TODAY) - timedelta(days=VISIT_DAYS)).isoformat()
    patient = database.patients[prescription.patient_id]
    visits = (database.appointments[number] for number in patient.past_appointments)
    return any(
        each.provider_id == prescription.prescriber_id
        and each.status == "completed"
        and each.date >= since
        for each in visits
    )
