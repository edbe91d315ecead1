"""The clinics' patients: households with their visits and prescriptions."""

from dataclasses import dataclass, field
from datetime import date, timedelta
from random import Random
from typing import Literal

from grpo_cl.domains.healthcare.database import (
    DAY_AHEAD,
    NOW,
    TODAY,
    Appointment,
    Day,
    HealthcareDB,
    Patient,
    Prescription,
    Provider,
    Referral,
    age_on,
)
from grpo_cl.domains.healthcare.names import (
    CHILD_MEDICINES,
    CITIES,
    FIRST_NAMES,
    LAST_NAMES,
    MEDICINES,
    STREETS,
    TIMES,
    Medicine,
)
from grpo_cl.domains.healthcare.rules import is_covered

HOUSEHOLDS = 260
_ADULT = 18

Status = Literal["scheduled", "completed", "no_show"]


@dataclass(kw_only=True)
class _Town:
    """The database while people move in."""

    database: HealthcareDB
    rng: Random
    patient_numbers: list[int]
    appointment_numbers: list[int]
    prescription_numbers: list[int]
    days: dict[str, list[Day]]
    """Every provider's calendar."""
    taken: set[tuple[str, str, str]] = field(default_factory=set[tuple[str, str, str]])
    """Provider, date and time of every visit."""


def settle(database: HealthcareDB, rng: Random) -> None:
    """Fill ``database`` with patients, appointments and prescriptions."""
    town = _Town(
        database=database,
        rng=rng,
        patient_numbers=rng.sample(range(1000, 10000), 4 * HOUSEHOLDS),
        appointment_numbers=rng.sample(range(10000, 100000), 30 * HOUSEHOLDS),
        prescription_numbers=rng.sample(range(10000, 100000), 15 * HOUSEHOLDS),
        days={number: [] for number in database.providers},
    )
    for day in database.calendars.values():
        town.days[day.provider_id].append(day)
    for number in range(HOUSEHOLDS):
        for patient in _household(town, number):
            database.patients[patient.patient_id] = patient
            _prescribe(town, patient)
            _visits(town, patient)


def _household(town: _Town, number: int) -> list[Patient]:
    rng = town.rng
    city, code = rng.choice(CITIES)
    address = f"{10 + 3 * number} {rng.choice(STREETS)}, {city}, OR {code}"
    plan, name = rng.choice(list(town.database.plans)), rng.choice(LAST_NAMES)
    adults, children = rng.choice((1, 1, 2)), rng.choice((0, 0, 1, 2))
    first_names = rng.sample(FIRST_NAMES, adults + children)
    ages = [rng.randint(26, 52 if children else 84) for _ in range(adults)]
    ages += [rng.randint(1, min(16, min(ages) - 20)) for _ in range(children)]
    found = [
        _person(town, f"{first} {name}", age, (plan, address))
        for first, age in zip(first_names, ages, strict=True)
    ]
    for child in found[adults:]:
        child.representatives += [adult.patient_id for adult in found[:adults]]
    if adults == 2 and rng.random() < 0.5:
        found[0].representatives.append(found[1].patient_id)
    return found


def _person(town: _Town, name: str, age: int, home: tuple[str, str]) -> Patient:
    rng = town.rng
    first, last = name.split(" ")
    born = date.fromisoformat(TODAY) - timedelta(days=365 * age + age // 4 + rng.randrange(5, 355))
    plan = town.database.plans[home[0]]
    wanted = min(rng.choice((0, 1, 1, 2)), len(plan.referral_specialties))
    until = [_shifted(rng.randrange(-40, 120)) for _ in range(wanted)]
    referred = zip(rng.sample(plan.referral_specialties, wanted), until, strict=True)
    return Patient(
        patient_id=f"PT{town.patient_numbers.pop()}",
        first_name=first,
        last_name=last,
        birth_date=born.isoformat(),
        plan_id=plan.plan_id,
        upcoming_appointments=[],
        past_appointments=[],
        providers_seen=[],
        referrals=[Referral(specialty=each, valid_until=day) for each, day in referred],
        representatives=[],
        late_cancellations=rng.choice((0, 0, 1, 1, 2)),
        balance_due=0,
        phone=f"971-555-{rng.randrange(1000, 9999)}",
        email=f"{first.lower()}.{last.lower()}{rng.randrange(10, 99)}@example.com",
        address=home[1],
    )


def _shifted(days: int) -> str:
    return (date.fromisoformat(TODAY) + timedelta(days=days)).isoformat()


def _prescribe(town: _Town, patient: Patient) -> None:
    rng, is_adult = town.rng, age_on(patient, TODAY) >= _ADULT
    fitting = [m for m in MEDICINES if is_adult or m.name in CHILD_MEDICINES]
    for medicine in rng.sample(fitting, rng.choice((0, 1, 1, 2, 3) if is_adult else (0, 0, 1))):
        prescribers = [p for p in _doctors(town, patient) if p.specialty == medicine.specialty]
        if not prescribers:
            continue
        prescriber = rng.choice(prescribers)
        _past_visit(town, patient, prescriber, days_ago=rng.choice((12, 30, 60, 120, 200, 280)))
        prescription = _prescription(town, patient, medicine, prescriber)
        town.database.prescriptions[prescription.prescription_id] = prescription


def _prescription(
    town: _Town, patient: Patient, medicine: Medicine, prescriber: Provider
) -> Prescription:
    rng = town.rng
    supply = rng.choice((30, 30, 60, 90))
    return Prescription(
        prescription_id=f"RX{town.prescription_numbers.pop()}",
        patient_id=patient.patient_id,
        medicine=medicine.name,
        prescriber_id=prescriber.provider_id,
        is_controlled=medicine.is_controlled,
        refills_left=rng.choice((0, 1, 2, 2, 3, 5)),
        days_supply=supply,
        # Mostly due by now.
        last_filled=_shifted(-rng.choice((3, supply - 12, supply - 5, supply, supply + 4))),
        expires=_shifted(rng.choice((-9, 45, 120, 200, 300))),
        status="discontinued" if rng.random() < 0.08 else "active",
    )


def _doctors(town: _Town, patient: Patient) -> list[Provider]:
    plan, age = town.database.plans[patient.plan_id], age_on(patient, TODAY)
    return [
        provider
        for provider in town.database.providers.values()
        if is_covered(plan, provider) and provider.min_age <= age <= provider.max_age
    ]


def _visits(town: _Town, patient: Patient) -> None:
    rng, doctors = town.rng, _doctors(town, patient)
    for provider in rng.sample(doctors, min(len(doctors), rng.choice((0, 0, 1, 2)))):
        _past_visit(town, patient, provider, days_ago=rng.randrange(8, 330))
    count = min(len(doctors), rng.choice((0, 1, 1, 2, 2, 3)))
    soon = rng.random() < 0.4
    for place, provider in enumerate(rng.sample(doctors, count)):
        slots = _slots(town, patient, provider, soon=soon and place == 0)
        if slots:
            _add(town, patient, provider, rng.choice(slots), "scheduled")


def _slots(
    town: _Town, patient: Patient, provider: Provider, *, soon: bool
) -> list[tuple[str, str]]:
    own = {town.database.appointments[n].date for n in patient.upcoming_appointments}
    slots = [
        (day.date, time)
        for day in town.days[provider.provider_id]
        if day.date not in own
        for time in TIMES
        if time not in day.free and (provider.provider_id, day.date, time) not in town.taken
    ]
    if soon:
        return [slot for slot in slots if NOW < " ".join(slot) < DAY_AHEAD]
    return [slot for slot in slots if slot[0] > DAY_AHEAD]


def _past_visit(town: _Town, patient: Patient, provider: Provider, *, days_ago: int) -> None:
    day = date.fromisoformat(_shifted(-days_ago))
    weekday = day - timedelta(days=max(0, day.weekday() - 4))
    status: Status = "completed" if town.rng.random() < 0.9 else "no_show"
    _add(town, patient, provider, (weekday.isoformat(), town.rng.choice(TIMES)), status)
    if status == "completed" and provider.provider_id not in patient.providers_seen:
        patient.providers_seen = sorted([*patient.providers_seen, provider.provider_id])


def _add(
    town: _Town, patient: Patient, provider: Provider, slot: tuple[str, str], status: Status
) -> None:
    rng, day, time = town.rng, *slot
    is_seen = provider.provider_id in patient.providers_seen
    appointment = Appointment(
        appointment_id=f"AP{town.appointment_numbers.pop()}",
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
        late_fee=town.database.clinics[provider.clinic_id].late_fee,
    )
    town.taken.add((provider.provider_id, day, time))
    town.database.appointments[appointment.appointment_id] = appointment
    own = patient.upcoming_appointments if status == "scheduled" else patient.past_appointments
    own.append(appointment.appointment_id)
    own.sort()
