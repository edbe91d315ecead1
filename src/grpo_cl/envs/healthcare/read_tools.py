"""Tools that read the database.

Their annotations and docstrings become the tool schemas that the agent reads.
"""

from collections.abc import Mapping
from datetime import date as calendar_date
from typing import Any

from pydantic import BaseModel

from grpo_cl.envs.healthcare.database import (
    Appointment,
    Clinic,
    Patient,
    Prescription,
    Provider,
    calendar_key,
)
from grpo_cl.envs.healthcare.rules import is_covered, referral_until
from grpo_cl.envs.toolkit import Toolkit
from grpo_cl.errors import ToolError

MAX_SEARCH_DAYS = 14


class Coverage(BaseModel):
    """Coverage of a patient's visits to a provider by the patient's plan."""

    plan: str
    is_covered: bool
    copay: float | None
    referral_required: bool
    referral_valid_until: str | None
    self_pay_price: float


def find_record(records: Mapping[str, Any], key: str, noun: str) -> Any:
    """The record with this key; an error that the agent reads if there is none."""
    if key not in records:
        raise ToolError(f"{noun} not found")
    return records[key]


def find_patient_by_name_and_birth_date(
    self: Toolkit, first_name: str, last_name: str, birth_date: str
) -> str:
    """Find the id of a patient.

    :param first_name: The first name, such as 'Ada'.
    :param last_name: The last name, such as 'Lind'.
    :param birth_date: The date of birth, such as '1984-05-12'.
    """
    identity = (first_name.lower(), last_name.lower(), birth_date)
    for patient in self.db.patients.values():
        if (patient.first_name.lower(), patient.last_name.lower(), patient.birth_date) == identity:
            return patient.patient_id
    raise ToolError("Patient not found")


def get_patient_info(self: Toolkit, patient_id: str) -> Patient:
    """Show a patient's record: plan, appointments, referrals, representatives, contact.

    :param patient_id: The patient, such as 'PT1234'.
    """
    return find_record(self.db.patients, patient_id, "Patient")


def get_provider_info(self: Toolkit, provider_id: str) -> Provider:
    """Show a provider: specialty, clinic, accepted plans, ages treated, prices.

    :param provider_id: The provider, such as 'DR123'.
    """
    return find_record(self.db.providers, provider_id, "Provider")


def get_clinic_info(self: Toolkit, clinic_id: str) -> Clinic:
    """Show a clinic's address, phone number and late fee.

    :param clinic_id: The clinic, such as 'CLN1'.
    """
    return find_record(self.db.clinics, clinic_id, "Clinic")


def search_providers(
    self: Toolkit, specialty: str, city: str | None = None, language: str | None = None
) -> list[Provider]:
    """List the providers of a specialty.

    :param specialty: The specialty, such as 'cardiology'.
    :param city: Only providers who work in this city.
    :param language: Only providers who speak this language.
    """
    return [
        provider
        for provider in self.db.providers.values()
        if provider.specialty == specialty.lower()
        and city in (None, provider.city)
        and (language is None or language in provider.languages)
    ]


def get_available_slots(
    self: Toolkit, provider_id: str, start_date: str, end_date: str
) -> dict[str, list[str]]:
    """Show a provider's free times by day, for at most 14 days.

    :param provider_id: The provider, such as 'DR123'.
    :param start_date: The first day, such as '2026-05-11'.
    :param end_date: The last day, such as '2026-05-15'.
    """
    find_record(self.db.providers, provider_id, "Provider")
    first, last = map(calendar_date.fromisoformat, (start_date, end_date))
    if not 0 <= (last - first).days < MAX_SEARCH_DAYS:
        raise ToolError(f"Ask for 1 to {MAX_SEARCH_DAYS} days, in order")
    days = (calendar_date.fromordinal(n) for n in range(first.toordinal(), last.toordinal() + 1))
    keys = (calendar_key(provider_id, day.isoformat()) for day in days)
    calendar_days = (self.db.calendars[key] for key in keys if key in self.db.calendars)
    return {day.date: list(day.free) for day in calendar_days if day.free}


def get_appointment(self: Toolkit, appointment_id: str) -> Appointment:
    """Show an appointment.

    :param appointment_id: The appointment, such as 'AP12345'.
    """
    return find_record(self.db.appointments, appointment_id, "Appointment")


def check_coverage(self: Toolkit, patient_id: str, provider_id: str) -> Coverage:
    """Show whether a patient's plan covers visits to a provider, and under which conditions.

    :param patient_id: The patient, such as 'PT1234'.
    :param provider_id: The provider, such as 'DR123'.
    """
    patient = find_record(self.db.patients, patient_id, "Patient")
    provider = find_record(self.db.providers, provider_id, "Provider")
    plan = self.db.plans[patient.plan_id]
    covered = is_covered(plan, provider)
    return Coverage(
        plan=plan.name,
        is_covered=covered,
        copay=plan.copays[provider.specialty] if covered else None,
        referral_required=provider.specialty in plan.referral_specialties,
        referral_valid_until=referral_until(patient, provider.specialty),
        self_pay_price=provider.self_pay_price,
    )


def get_prescriptions(self: Toolkit, patient_id: str) -> list[Prescription]:
    """List a patient's prescriptions.

    :param patient_id: The patient, such as 'PT1234'.
    """
    find_record(self.db.patients, patient_id, "Patient")
    return [
        prescription
        for prescription in self.db.prescriptions.values()
        if prescription.patient_id == patient_id
    ]


READ_TOOLS = (
    find_patient_by_name_and_birth_date,
    get_patient_info,
    get_provider_info,
    get_clinic_info,
    search_providers,
    get_available_slots,
    get_appointment,
    check_coverage,
    get_prescriptions,
)
"""In the order of the tool schemas."""
