"""Synthetic patients: households with their visits and prescriptions."""

from dataclasses import dataclass, field
from datetime import date, timedelta
from random import Random
from typing import Literal

from grpo_cl.envs.healthcare.database import (
    ADULT_AGE,
    DAY_AHEAD,
    NOW,
    TODAY,
    Appointment,
    CalendarDay,
    HealthcareDB,
    Patient,
    Prescription,
    Provider,
    Referral,
    age_on,
)
from grpo_cl.envs.healthcare.reference_data import (
    CHILD_MEDICINES,
    CITIES,
    FIRST_NAMES,
    LAST_NAMES,
    MEDICINES,
    STREETS,
    TIMES,
    Medicine,
)
from grpo_cl.envs.healthcare.rules import is_covered

NUM_HOUSEHOLDS = 260

AppointmentStatus = Literal["scheduled", "completed", "no_show"]


@dataclass(kw_only=True)
class _Draft:
    """The database under construction, with unused ids and booked times."""

    database: HealthcareDB
    rng: Random
    patient_numbers: list[int]
    appointment_numbers: list[int]
    prescription_numbers: list[int]
    days: dict[str, list[CalendarDay]]
    """Calendar days by provider id."""
    booked: set[tuple[str, str, str]] = field(default_factory=set[tuple[str, str, str]])
    """Provider id, date and time of every visit."""


def add_patients(database: HealthcareDB, rng: Random) -> None:
    """Fill ``database`` with patients, appointments and prescriptions."""
    draft = _Draft(
        database=database,
        rng=rng,
        patient_numbers=rng.sample(range(1000, 10000), 4 * NUM_HOUSEHOLDS),
        appointment_numbers=rng.sample(range(10000, 100000), 30 * NUM_HOUSEHOLDS),
        prescription_numbers=rng.sample(range(10000, 100000), 15 * NUM_HOUSEHOLDS),
        days={number: [] for number in database.providers},
    )
    for day in database.calendars.values():
        draft.days[day.provider_id].append(day)
    for number in range(NUM_HOUSEHOLDS):
        for patient in _make_household(draft, number):
            database.patients[patient.patient_id] = patient
            _add_prescriptions(draft, patient)
            _add_visits(draft, patient)


def _make_household(draft: _Draft, number: int) -> list[Patient]:
    rng = draft.rng
    city, zip_code = rng.choice(CITIES)
    address = f"{10 + 3 * number} {rng.choice(STREETS)}, {city}, OR {zip_code}"
    plan_id, name = rng.choice(list(draft.database.plans)), rng.choice(LAST_NAMES)
    adults, children = rng.choice((1, 1, 2)), rng.choice((0, 0, 1, 2))
    first_names = rng.sample(FIRST_NAMES, adults + children)
    ages = [rng.randint(26, 52 if children else 84) for _ in range(adults)]
    ages += [rng.randint(1, min(16, min(ages) - 20)) for _ in range(children)]
    members = [
        _make_patient(draft, f"{first} {name}", age, (plan_id, address))
        for first, age in zip(first_names, ages, strict=True)
    ]
    for child in members[adults:]:
        child.representatives += [adult.patient_id for adult in members[:adults]]
    if adults == 2 and rng.random() < 0.5:
        members[0].representatives.append(members[1].patient_id)
    return members


def _make_patient(draft: _Draft, name: str, age: int, household: tuple[str, str]) -> Patient:
    rng = draft.rng
    first, last = name.split(" ")
    birth_date = date.fromisoformat(TODAY) - timedelta(
        days=365 * age + age // 4 + rng.randrange(5, 355)
    )
    plan = draft.database.plans[household[0]]
    num_referrals = min(rng.choice((0, 1, 1, 2)), len(plan.referral_specialties))
    until = [_days_from_today(rng.randrange(-40, 120)) for _ in range(num_referrals)]
    referrals = zip(rng.sample(plan.referral_specialties, num_referrals), until, strict=True)
    return Patient(
        patient_id=f"PT{draft.patient_numbers.pop()}",
        first_name=first,
        last_name=last,
        birth_date=birth_date.isoformat(),
        plan_id=plan.plan_id,
        upcoming_appointments=[],
        past_appointments=[],
        providers_seen=[],
        referrals=[Referral(specialty=specialty, valid_until=day) for specialty, day in referrals],
        representatives=[],
        late_cancellations=rng.choice((0, 0, 1, 1, 2)),
        balance_due=0,
        phone=f"971-555-{rng.randrange(1000, 9999)}",
        email=f"{first.lower()}.{last.lower()}{rng.randrange(10, 99)}@example.com",
        address=household[1],
    )


def _days_from_today(days: int) -> str:
    return (date.fromisoformat(TODAY) + timedelta(days=days)).isoformat()


def _add_prescriptions(draft: _Draft, patient: Patient) -> None:
    rng, is_adult = draft.rng, age_on(patient, TODAY) >= ADULT_AGE
    suitable = [m for m in MEDICINES if is_adult or m.name in CHILD_MEDICINES]
    for medicine in rng.sample(suitable, rng.choice((0, 1, 1, 2, 3) if is_adult else (0, 0, 1))):
        prescribers = [
            p for p in _covered_providers(draft, patient) if p.specialty == medicine.specialty
        ]
        if not prescribers:
            continue
        prescriber = rng.choice(prescribers)
        _add_past_visit(
            draft, patient, prescriber, days_ago=rng.choice((12, 30, 60, 120, 200, 280))
        )
        prescription = _make_prescription(draft, patient, medicine, prescriber)
        draft.database.prescriptions[prescription.prescription_id] = prescription


def _make_prescription(
    draft: _Draft, patient: Patient, medicine: Medicine, prescriber: Provider
) -> Prescription:
    rng = draft.rng
    supply = rng.choice((30, 30, 60, 90))
    return Prescription(
        prescription_id=f"RX{draft.prescription_numbers.pop()}",
        patient_id=patient.patient_id,
        medicine=medicine.name,
        prescriber_id=prescriber.provider_id,
        is_controlled=medicine.is_controlled,
        refills_left=rng.choice((0, 1, 2, 2, 3, 5)),
        days_supply=supply,
        # Most refills are due today.
        last_filled=_days_from_today(-rng.choice((3, supply - 12, supply - 5, supply, supply + 4))),
        expires=_days_from_today(rng.choice((-9, 45, 120, 200, 300))),
        status="discontinued" if rng.random() < 0.08 else "active",
    )


def _covered_providers(draft: _Draft, patient: Patient) -> list[Provider]:
    plan, age = draft.database.plans[patient.plan_id], age_on(patient, TODAY)
    return [
        provider
        for provider in draft.database.providers.values()
        if is_covered(plan, provider) and provider.min_age <= age <= provider.max_age
    ]


def _add_visits(draft: _Draft, patient: Patient) -> None:
    rng, providers = draft.rng, _covered_providers(draft, patient)
    for provider in rng.sample(providers, min(len(providers), rng.choice((0, 0, 1, 2)))):
        _add_past_visit(draft, patient, provider, days_ago=rng.randrange(8, 330))
    count = min(len(providers), rng.choice((0, 1, 1, 2, 2, 3)))
    is_soon = rng.random() < 0.4
    for index, provider in enumerate(rng.sample(providers, count)):
        slots = _bookable_slots(draft, patient, provider, is_soon=is_soon and index == 0)
        if slots:
            _add_appointment(draft, patient, provider, rng.choice(slots), "scheduled")


def _bookable_slots(
    draft: _Draft, patient: Patient, provider: Provider, *, is_soon: bool
) -> list[tuple[str, str]]:
    busy_days = {draft.database.appointments[n].date for n in patient.upcoming_appointments}
    slots = [
        (day.date, time)
        for day in draft.days[provider.provider_id]
        if day.date not in busy_days
        for time in TIMES
        if time not in day.free and (provider.provider_id, day.date, time) not in draft.booked
    ]
    if is_soon:
        return [slot for slot in slots if NOW < " ".join(slot) < DAY_AHEAD]
    return [slot for slot in slots if slot[0] > DAY_AHEAD]


def _add_past_visit(draft: _Draft, patient: Patient, provider: Provider, *, days_ago: int) -> None:
    day = date.fromisoformat(_days_from_today(-days_ago))
    weekday = day - timedelta(days=max(0, day.weekday() - 4))
    status: AppointmentStatus = "completed" if draft.rng.random() < 0.9 else "no_show"
    _add_appointment(
        draft, patient, provider, (weekday.isoformat(), draft.rng.choice(TIMES)), status
    )
    if status == "completed" and provider.provider_id not in patient.providers_seen:
        patient.providers_seen = sorted([*patient.providers_seen, provider.provider_id])


def _add_appointment(
    draft: _Draft,
    patient: Patient,
    provider: Provider,
    slot: tuple[str, str],
    status: AppointmentStatus,
) -> None:
    rng, day, time = draft.rng, *slot
    is_seen = provider.provider_id in patient.providers_seen
    appointment = Appointment(
        appointment_id=f"AP{draft.appointment_numbers.pop()}",
        patient_id=patient.patient_id,
        provider_id=provider.provider_id,
        date=day,
        time=time,
        visit_type="video"
        if provider.offers_video and is_seen and rng.random() < 0.3
        else "in_person",
        payment="insurance",
        status=status,
        times_moved=rng.choice((0, 0, 0, 1, 2)),
        late_fee=draft.database.clinics[provider.clinic_id].late_fee,
    )
    draft.booked.add((provider.provider_id, day, time))
    draft.database.appointments[appointment.appointment_id] = appointment
    ids = patient.upcoming_appointments if status == "scheduled" else patient.past_appointments
    ids.append(appointment.appointment_id)
    ids.sort()
