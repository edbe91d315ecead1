"""Rules of the policy that can be checked against the database; tools enforce only some of them."""

from datetime import date, timedelta
from typing import NamedTuple

from grpo_cl.envs.healthcare.database import (
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

MAX_MOVES = 2
"""Times that one appointment may be moved."""
CONTROLLED_VISIT_DAYS = 90
"""A refill of a controlled medicine needs a visit to its prescriber within this many days."""
EARLY_REFILL_DAYS = 7
"""A refill may be requested this many days before the last one runs out."""


class ProposedVisit(NamedTuple):
    """A visit to be checked against the policy."""

    provider: Provider
    date: str
    time: str
    visit_type: str = "in_person"
    payment: str = "insurance"


def is_covered(plan: Plan, provider: Provider) -> bool:
    """Whether the plan covers visits to the provider."""
    return plan.plan_id in provider.accepted_plans and provider.specialty in plan.copays


def referral_until(patient: Patient, specialty: str) -> str | None:
    """The last day of the patient's longest referral to a specialty, expired or not."""
    dates = [
        referral.valid_until for referral in patient.referrals if referral.specialty == specialty
    ]
    return max(dates, default=None)


def visit_violations(database: HealthcareDB, patient: Patient, visit: ProposedVisit) -> set[str]:
    """The rules that the visit violates; empty if it may be booked."""
    provider, plan = visit.provider, database.plans[patient.plan_id]
    is_insured = visit.payment == "insurance"
    is_new = provider.provider_id not in patient.providers_seen
    until = referral_until(patient, provider.specialty)
    violations = {
        "coverage": is_insured and not is_covered(plan, provider),
        "referral": is_insured
        and provider.specialty in plan.referral_specialties
        and (until is None or until < visit.date),
        "age": not provider.min_age <= age_on(patient, visit.date) <= provider.max_age,
        "new patient": is_new and not provider.accepts_new_patients,
        "first by video": is_new and visit.visit_type == "video",
        "clash": f"{visit.date} {visit.time}" in _busy_times(database, patient),
    }
    return {name for name, is_violated in violations.items() if is_violated}


def _busy_times(database: HealthcareDB, patient: Patient) -> set[str]:
    return {appointment.start for appointment in upcoming(database, patient)}


def upcoming(database: HealthcareDB, patient: Patient) -> list[Appointment]:
    """The patient's upcoming appointments, sorted by time."""
    appointments = [database.appointments[key] for key in patient.upcoming_appointments]
    return sorted(
        (visit for visit in appointments if visit.status == "scheduled" and visit.start > NOW),
        key=lambda visit: visit.start,
    )


def is_late(appointment: Appointment) -> bool:
    """Whether the appointment begins in less than 24 hours."""
    return NOW < appointment.start < DAY_AHEAD


def cancellation_fee(patient: Patient, appointment: Appointment, reason: str) -> int:
    """The fee in dollars for cancelling the appointment now."""
    is_waived = reason == "illness" or not patient.late_cancellations
    return appointment.late_fee if is_late(appointment) and not is_waived else 0


def refill_violations(database: HealthcareDB, prescription: Prescription) -> set[str]:
    """The rules that a refill violates; empty if it may be requested."""
    last = date.fromisoformat(prescription.last_filled)
    earliest = last + timedelta(days=prescription.days_supply - EARLY_REFILL_DAYS)
    violations = {
        "no refills": prescription.refills_left < 1,
        "expired": prescription.expires < TODAY,
        "discontinued": prescription.status != "active",
        "early": earliest.isoformat() > TODAY,
        "controlled": prescription.is_controlled
        and not _visited_prescriber(database, prescription),
    }
    return {name for name, is_violated in violations.items() if is_violated}


def _visited_prescriber(database: HealthcareDB, prescription: Prescription) -> bool:
    since = (date.fromisoformat(TODAY) - timedelta(days=CONTROLLED_VISIT_DAYS)).isoformat()
    patient = database.patients[prescription.patient_id]
    visits = (database.appointments[key] for key in patient.past_appointments)
    return any(
        visit.provider_id == prescription.prescriber_id
        and visit.status == "completed"
        and visit.date >= since
        for visit in visits
    )
