"""The healthcare database, generated from a fixed seed."""

from collections.abc import Sequence
from datetime import date, timedelta
from functools import cache
from random import Random

from grpo_cl.envs.healthcare.database import (
    TODAY,
    CalendarDay,
    Clinic,
    HealthcareDB,
    Plan,
    Provider,
    calendar_key,
)
from grpo_cl.envs.healthcare.patients import add_patients
from grpo_cl.envs.healthcare.reference_data import (
    CITIES,
    CLINICS,
    FIRST_NAMES,
    LANGUAGES,
    LAST_NAMES,
    PLANS,
    SPECIALTIES,
    STREETS,
    TIMES,
    Specialty,
)

SEED = "healthcare"
NUM_WEEKS = 6
"""Visits can be booked this many weeks ahead."""


@cache
def build_database() -> HealthcareDB:
    """The initial database of every episode; it is shared and must not be changed."""
    rng = Random(SEED)
    clinics = _make_clinics(rng)
    providers = _make_providers(rng, list(clinics.values()))
    database = HealthcareDB(
        appointments={},
        calendars=_make_calendars(rng, list(providers)),
        clinics=clinics,
        patients={},
        plans=_make_plans(rng),
        prescriptions={},
        providers=providers,
    )
    add_patients(database, rng)
    return database


@cache
def working_days() -> tuple[str, ...]:
    """The days of the calendars, today first."""
    first = date.fromisoformat(TODAY)
    days = (first + timedelta(days=offset) for offset in range(7 * NUM_WEEKS))
    return tuple(day.isoformat() for day in days if day.weekday() < 5)


def _make_clinics(rng: Random) -> dict[str, Clinic]:
    zips = dict(CITIES)
    clinics = [
        Clinic(
            clinic_id=f"CLN{number}",
            name=name,
            address=f"{rng.randrange(100, 999)} {rng.choice(STREETS)}, {city}, OR {zips[city]}",
            city=city,
            phone=f"503-555-{rng.randrange(1000, 9999)}",
            late_fee=fee,
        )
        for number, (name, city, fee) in enumerate(CLINICS, 1)
    ]
    return {clinic.clinic_id: clinic for clinic in clinics}


def _make_plans(rng: Random) -> dict[str, Plan]:
    plans: dict[str, Plan] = {}
    for number, (name, referred, uncovered) in enumerate(PLANS, 1):
        copays = {
            specialty.name: rng.randrange(12, 70) + rng.choice((0.25, 0.75))
            for specialty in SPECIALTIES
            if specialty.name not in uncovered
        }
        plans[f"PLN{number}"] = Plan(
            plan_id=f"PLN{number}", name=name, copays=copays, referral_specialties=list(referred)
        )
    return plans


def _make_providers(rng: Random, clinics: Sequence[Clinic]) -> dict[str, Provider]:
    specialties = [specialty for specialty in SPECIALTIES for _ in range(specialty.providers)]
    numbers = sorted(rng.sample(range(101, 999), len(specialties)))
    names = zip(
        rng.sample(FIRST_NAMES, len(specialties)),
        rng.sample(LAST_NAMES, len(specialties)),
        strict=True,
    )
    providers = [
        _make_provider(rng, specialty, (f"DR{number}", " ".join(name)), rng.choice(clinics))
        for specialty, number, name in zip(specialties, numbers, names, strict=True)
    ]
    return {provider.provider_id: provider for provider in providers}


def _make_provider(
    rng: Random, specialty: Specialty, identity: tuple[str, str], clinic: Clinic
) -> Provider:
    plans = [f"PLN{number}" for number in range(1, len(PLANS) + 1)]
    return Provider(
        provider_id=identity[0],
        name=identity[1],
        specialty=specialty.name,
        clinic_id=clinic.clinic_id,
        city=clinic.city,
        languages=["English", *sorted(rng.sample(LANGUAGES, rng.choice((0, 1, 1, 2))))],
        accepted_plans=sorted(rng.sample(plans, rng.randint(3, 5))),
        accepts_new_patients=rng.random() < 0.7,
        offers_video=rng.random() < 0.6,
        min_age=specialty.min_age,
        max_age=specialty.max_age,
        self_pay_price=rng.randrange(110, 320) + rng.choice((0.25, 0.5, 0.75)),
    )


def _make_calendars(rng: Random, provider_ids: Sequence[str]) -> dict[str, CalendarDay]:
    calendars: dict[str, CalendarDay] = {}
    for provider_id in provider_ids:
        day_off = rng.randrange(8)  # a value from 5 on means no day off
        for index, day in enumerate(working_days()):
            if date.fromisoformat(day).weekday() == day_off:
                continue
            # Nothing is free today; later days have more free times.
            count = rng.randint(1, 3 + index // 10) if index else 0
            free = sorted(rng.sample(TIMES, count))
            calendars[calendar_key(provider_id, day)] = CalendarDay(
                provider_id=provider_id, date=day, free=free
            )
    return calendars
