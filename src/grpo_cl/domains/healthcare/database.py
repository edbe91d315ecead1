"""The records of the clinics, and the one moment at which every episode takes place."""

from datetime import date
from typing import Literal

from pydantic import BaseModel

TODAY = "2026-05-04"
NOW = f"{TODAY} 12:00"
"""A Monday at noon. Dates are ISO texts, so that they compare as they are ordered."""
DAY_AHEAD = "2026-05-05 12:00"
"""What begins earlier is less than 24 hours away."""

VisitType = Literal["in_person", "video"]
Payment = Literal["insurance", "self_pay"]
CancellationReason = Literal["no longer needed", "schedule conflict", "illness"]


class Plan(BaseModel):
    """An insurance plan."""

    plan_id: str
    name: str
    copays: dict[str, float]
    """By specialty; a specialty that is missing is not covered."""
    referral_specialties: list[str]
    """Specialties for which the plan pays only after a referral."""


class Clinic(BaseModel):
    """A place where providers work."""

    clinic_id: str
    name: str
    address: str
    city: str
    phone: str
    late_fee: int
    """In dollars, for a visit called off less than 24 hours before."""


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


class Day(BaseModel):
    """What is free in one provider's calendar on one day."""

    provider_id: str
    date: str
    free: list[str]


class Referral(BaseModel):
    """A doctor's note that a specialist should see the patient."""

    specialty: str
    valid_until: str


class Patient(BaseModel):
    """A person in care, with the ids of what belongs to them."""

    patient_id: str
    first_name: str
    last_name: str
    birth_date: str
    plan_id: str
    upcoming_appointments: list[str]
    past_appointments: list[str]
    providers_seen: list[str]
    """Providers with whom the patient is no longer new."""
    referrals: list[Referral]
    representatives: list[str]
    """Patient ids of those who may act for this patient."""
    late_cancellations: int
    balance_due: int
    phone: str
    email: str
    address: str


class Appointment(BaseModel):
    """A visit, past or to come."""

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
    """What the clinic asks for if the visit is called off too late."""
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
    """Everything the clinics know."""

    appointments: dict[str, Appointment]
    calendars: dict[str, Day]
    """By ``calendar_key``."""
    clinics: dict[str, Clinic]
    patients: dict[str, Patient]
    plans: dict[str, Plan]
    prescriptions: dict[str, Prescription]
    providers: dict[str, Provider]


def calendar_key(provider_id: str, day: str) -> str:
    """Where a provider's day is kept."""
    return f"{provider_id}/{day}"


def age_on(patient: Patient, day: str) -> int:
    """The patient's age in years on a day."""
    born, then = date.fromisoformat(patient.birth_date), date.fromisoformat(day)
    return then.year - born.year - ((then.month, then.day) < (born.month, born.day))
