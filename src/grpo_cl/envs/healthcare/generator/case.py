"""State of a healthcare call under construction, and how the caller names records."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date

from grpo_cl.envs.generation.requests import Call, Case, Question
from grpo_cl.envs.healthcare.database import (
    ADULT_AGE,
    TODAY,
    Appointment,
    HealthcareDB,
    Patient,
    Prescription,
    Provider,
    age_on,
)
from grpo_cl.envs.healthcare.rules import upcoming


@dataclass(kw_only=True)
class HealthcareCase(Case):
    """A caller and the patient that the call is about, often the caller."""

    database: HealthcareDB
    caller: Patient
    patient: Patient
    all_patients: Sequence[Patient]
    """All patients of the split."""
    used: set[str] = field(default_factory=set[str])
    """Ids and specialties that a request uses; no other request may depend on them."""
    planned: set[str] = field(default_factory=set[str])
    """Start times of the visits that the requests book."""
    has_described_visit: bool = False
    """Whether an appointment is described, so that the agent has to find it."""

    @property
    def is_for_caller(self) -> bool:
        """Whether the caller is the patient."""
        return self.caller.patient_id == self.patient.patient_id

    @property
    def possessive(self) -> str:
        """The patient as a possessive: '{your}' or the first name."""
        return "{your}" if self.is_for_caller else f"{self.patient.first_name}'s"

    @property
    def recipient(self) -> str:
        """A suffix that says for whom something is done."""
        return "" if self.is_for_caller else f" for {self.patient.first_name}"

    @property
    def subject_words(self) -> str:
        """The patient as the subject of 'to be'."""
        return "{you} are" if self.is_for_caller else f"{self.patient.first_name} is"

    @property
    def relation(self) -> str:
        """The relation of the patient to the caller."""
        return "child" if age_on(self.patient, TODAY) < ADULT_AGE else "partner"

    def visits(self) -> list[Appointment]:
        """Upcoming appointments that no request uses, shuffled."""
        return self.shuffled(
            visit
            for visit in upcoming(self.database, self.patient)
            if not {visit.appointment_id, visit.provider_id} & self.used
        )

    def prescriptions(self) -> list[Prescription]:
        """The patient's prescriptions that no request uses, shuffled."""
        return self.shuffled(
            prescription
            for prescription in self.database.prescriptions.values()
            if prescription.patient_id == self.patient.patient_id
            and prescription.prescription_id not in self.used
        )

    def providers(self) -> list[Provider]:
        """Providers that no request uses, of specialties that no request uses, shuffled."""
        return self.shuffled(
            provider
            for provider in self.database.providers.values()
            if not {provider.provider_id, provider.specialty} & self.used
        )

    def mark_used(self, *ids: str) -> None:
        """Exclude these ids and specialties from other requests of this call."""
        self.used.update(ids)

    def provider_of(self, visit: Appointment) -> Provider:
        """The provider of the visit."""
        return self.database.providers[visit.provider_id]

    def name_visit(self, visit: Appointment) -> str:
        """The appointment by its id, or by a description that fits no other upcoming one."""
        if not self.omits_detail():
            return f"appointment {visit.appointment_id}"
        self.has_described_visit = True
        provider = self.provider_of(visit)
        others = [
            self.provider_of(other)
            for other in upcoming(self.database, self.patient)
            if other is not visit
        ]
        day = day_words(visit.date, is_exact=False)
        names = [
            f"{self.possessive} appointment with {doctor_name(provider)}",
            f"{self.possessive} appointment on {day} at {visit.time}",
        ]
        if provider.specialty not in self.used | {other.specialty for other in others}:
            self.mark_used(provider.specialty)
            names.append(f"{self.possessive} {provider.specialty} appointment")
        return self.rng.choice(names)


def day_words(day: str, *, is_exact: bool) -> str:
    """A day in words, followed by the ISO date if ``is_exact``."""
    parsed = date.fromisoformat(day)
    words = f"{parsed:%A}, {parsed:%B} {parsed.day}"
    return f"{words} ({day})" if is_exact else words


def doctor_name(provider: Provider) -> str:
    """The provider's name with the title 'Doctor'."""
    return f"Doctor {provider.name}"


def find_patient(patient: Patient) -> Call:
    """The call that finds the patient's id."""
    arguments = {
        "first_name": patient.first_name,
        "last_name": patient.last_name,
        "birth_date": patient.birth_date,
    }
    return "find_patient_by_name_and_birth_date", arguments


def read_patient(patient: Patient) -> Call:
    """The call that reads the patient's record."""
    return "get_patient_info", {"patient_id": patient.patient_id}


def read_provider(provider: Provider) -> Call:
    """The call that reads the provider's record."""
    return "get_provider_info", {"provider_id": provider.provider_id}


def read_visit(visit: Appointment) -> Call:
    """The call that reads the appointment."""
    return "get_appointment", {"appointment_id": visit.appointment_id}


def clinic_question(case: HealthcareCase, provider: Provider) -> Question:
    """A question for the phone number of the provider's clinic."""
    clinic = case.database.clinics[provider.clinic_id]
    reads: list[Call] = [
        read_provider(provider),
        ("get_clinic_info", {"clinic_id": clinic.clinic_id}),
    ]
    return Question("the exact phone number of the clinic for that visit", clinic.phone, reads)
