"""Record types of the clinics, and the simulated time of every episode."""

from datetime import date
from typing import Literal

from pydantic import BaseModel

TODAY = "2026-05-04"
NOW = f"{TODAY} 12:00"
"""A Monday at noon. Dates are ISO strings, so that string comparison is date comparison."""
DAY_AHEAD = "2026-05-05 12:00"
"""24 hours after ``NOW``."""

ADULT_AGE = 18

VisitType = Literal["in_person", "video"]
Payment = Literal["insurance", "self_pay"]
CancellationReason = Literal["no longer needed", "schedule conflict", "illness"]


class Plan(BaseModel):
    """An insurance plan."""

    plan_id: str
    name: str
    copays: dict[str, float]
    """By specialty; a missing specialty is not covered."""
    referral_specialties: list[str]
    """Specialties for which the plan requires a referral."""


class Clinic(BaseModel):
    """A clinic."""

    clinic_id: str
    name: str
    address: str
    city: str
    phone: str
    late_fee: int
    """In dollars, for a visit that is cancelled less than 24 hours before."""


class Provider(BaseModel):
    """A doctor."""

    provider_id: str
    name: str
    specialty: str
    clinic_id: str
    city: str
    languages: list[str]
    accepted_plans: list[str]
    accepts_new_patients: bool
    offers_video: bool
    min_age: int
    max_age: int
    self_pay_price: float


class CalendarDay(BaseModel):
    """The free times of one provider on one day."""

    provider_id: str
    date: str
    free: list[str]


class Referral(BaseModel):
    """A referral of a patient to a specialty."""

    specialty: str
    valid_until: str


class Patient(BaseModel):
    """A patient, with the ids of the patient's appointments and representatives."""

    patient_id: str
    first_name: str
    last_name: str
    birth_date: str
    plan_id: str
    upcoming_appointments: list[str]
    past_appointments: list[str]
    providers_seen: list[str]
    """Providers that the patient has visited before."""
    referrals: list[Referral]
    representatives: list[str]
    """Ids of the patients who may act for this patient."""
    late_cancellations: int
    balance_due: int
    phone: str
    email: str
    address: str


class Appointment(BaseModel):
    """A past or upcoming visit."""

    appointment_id: str
    patient_id: str
    provider_id: str
    date: str
    time: str
    visit_type: VisitType
    payment: Payment
    status: Literal["scheduled", "completed", "no_show", "cancelled"]
    times_moved: int = 0
    late_fee: int
    """The clinic's fee in dollars for a late cancellation."""
    fee_charged: int = 0
    cancellation_reason: CancellationReason | None = None

    @property
    def start(self) -> str:
        """Date and time, to be compared with ``NOW``."""
        return f"{self.date} {self.time}"


class Prescription(BaseModel):
    """A medicine that a provider prescribed."""

    prescription_id: str
    patient_id: str
    medicine: str
    prescriber_id: str
    is_controlled: bool
    refills_left: int
    days_supply: int
    last_filled: str
    expires: str
    status: Literal["active", "discontinued"] = "active"


class HealthcareDB(BaseModel):
    """The database of the clinics; each table maps ids to records."""

    appointments: dict[str, Appointment]
    calendars: dict[str, CalendarDay]
    """By ``calendar_key``."""
    clinics: dict[str, Clinic]
    patients: dict[str, Patient]
    plans: dict[str, Plan]
    prescriptions: dict[str, Prescription]
    providers: dict[str, Provider]


def calendar_key(provider_id: str, day: str) -> str:
    """The key of a provider's day in ``HealthcareDB.calendars``."""
    return f"{provider_id}/{day}"


def age_on(patient: Patient, day: str) -> int:
    """The patient's age in years on a day."""
    birth, today = date.fromisoformat(patient.birth_date), date.fromisoformat(day)
    return today.year - birth.year - ((today.month, today.day) < (birth.month, birth.day))
