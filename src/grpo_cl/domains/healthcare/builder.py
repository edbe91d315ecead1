"""The clinics' records, made up by one seed: the same in every process, and no data file."""

from collections.abc import Sequence
from datetime import date, timedelta
from functools import cache
from random import Random

from grpo_cl.domains.healthcare.database import (
    TODAY,
    Clinic,
    Day,
    HealthcareDB,
    Plan,
    Provider,
    calendar_key,
)
from grpo_cl.domains.healthcare.names import (
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
from grpo_cl.domains.healthcare.population import settle

SEED = "healthcare"
WEEKS = 6
"""How far ahead visits can be booked."""


@cache
def build_database() -> HealthcareDB:
    """The database every episode starts from; nobody may change it."""
    rng = Random(SEED)
    clinics = _clinics(rng)
    providers = _providers(rng, list(clinics.values()))
    database = HealthcareDB(
        appointments={},
        calendars=_calendars(rng, list(providers)),
        clinics=clinics,
        patients={},
        plans=_plans(rng),
        prescriptions={},
        providers=providers,
    )
    settle(database, rng)
    return database


@cache
def working_days() -> tuple[str, ...]:
    """The days of the calendars, today first."""
    first = date.fromisoformat(TODAY)
    days = (first + timedelta(days=offset) for offset in range(7 * WEEKS))
    return tuple(day.isoformat() for day in days if day.weekday() < 5)


def _clinics(rng: Random) -> dict[str, Clinic]:
    codes = dict(CITIES)
    found = [
        Clinic(
            clinic_id=f"CLN{number}",
            name=name,
            address=f"{rng.randrange(100, 999)} {rng.choice(STREETS)}, {city}, OR {codes[city]}",
            city=city,
            phone=f"503-555-{rng.randrange(1000, 9999)}",
            late_fee=fee,
        )
        for number, (name, city, fee) in enumerate(CLINICS, 1)
    ]
    return {clinic.clinic_id: clinic for clinic in found}


def _plans(rng: Random) -> dict[str, Plan]:
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


def _providers(rng: Random, clinics: Sequence[Clinic]) -> dict[str, Provider]:
    kinds = [specialty for specialty in SPECIALTIES for _ in range(specialty.providers)]
    numbers = sorted(rng.sample(range(101, 999), len(kinds)))
    names = zip(
        rng.sample(FIRST_NAMES, len(kinds)), rng.sample(LAST_NAMES, len(kinds)), strict=True
    )
    found = [
        _provider(rng, kind, (f"DR{number}", " ".join(name)), rng.choice(clinics))
        for kind, number, name in zip(kinds, numbers, names, strict=True)
    ]
    return {provider.provider_id: provider for provider in found}


def _provider(rng: Random, kind: Specialty, label: tuple[str, str], clinic: Clinic) -> Provider:
    plans = [f"PLN{number}" for number in range(1, len(PLANS) + 1)]
    return Provider(
        provider_id=label[0],
        name=label[1],
        specialty=kind.name,
        clinic_id=clinic.clinic_id,
        city=clinic.city,
        languages=["English", *sorted(rng.sample(LANGUAGES, rng.choice((0, 1, 1, 2))))],
        accepted_plans=sorted(rng.sample(plans, rng.randint(3, 5))),
        accepts_new_patients=rng.random() < 0.7,
        offers_video=rng.random() < 0.6,
        min_age=kind.min_age,
        max_age=kind.max_age,
        self_pay_price=rng.randrange(110, 320) + rng.choice((0.25, 0.5, 0.75)),
    )


def _calendars(rng: Random, provider_ids: Sequence[str]) -> dict[str, Day]:
    calendars: dict[str, Day] = {}
    for provider_id in provider_ids:
        day_off = rng.randrange(8)  # from 5 on, none
        for place, day in enumerate(working_days()):
            if date.fromisoformat(day).weekday() == day_off:
                continue
            # Who calls today finds nothing left for today, and more the later the day.
            count = rng.randint(1, 3 + place // 10) if place else 0
            free = sorted(rng.sample(TIMES, count))
            calendars[calendar_key(provider_id, day)] = Day(
                provider_id=provider_id, date=day, free=free
            )
    return calendars
