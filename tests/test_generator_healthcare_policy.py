"""Generated healthcare tasks obey the clinics' policy, checked against the records anew."""

import re
from datetime import date, timedelta

import pytest

from grpo_cl.domains.healthcare.builder import build_database
from grpo_cl.domains.healthcare.database import (
    DAY_AHEAD,
    NOW,
    TODAY,
    Appointment,
    HealthcareDB,
    Patient,
    age_on,
)
from grpo_cl.domains.healthcare.domain import HealthcareDomain
from grpo_cl.types import Task
from healthcare_stories import made, story


@pytest.fixture(scope="module")
def healthcare() -> HealthcareDomain:
    return HealthcareDomain()


@pytest.fixture(scope="module")
def records() -> HealthcareDB:
    return build_database()


@pytest.fixture(scope="module")
def mixed(healthcare: HealthcareDomain) -> list[Task]:
    return healthcare.generate(seed=11, count=200)


@pytest.fixture(scope="module")
def hardest(healthcare: HealthcareDomain) -> list[Task]:
    return healthcare.generate(seed=12, count=200, difficulty=1.0)


def coming(records: HealthcareDB, patient: Patient) -> list[Appointment]:
    visits = [records.appointments[number] for number in patient.upcoming_appointments]
    return [visit for visit in visits if visit.start > NOW]


def test_booked_visits_are_covered_or_paid_and_referred_where_the_plan_asks_for_it(
    records: HealthcareDB, mixed: list[Task], hardest: list[Task]
) -> None:
    payments: set[str] = set()
    for visit in made(mixed + hardest, "schedule_appointment"):
        patient = records.patients[visit["patient_id"]]
        plan, provider = records.plans[patient.plan_id], records.providers[visit["provider_id"]]
        covered = plan.plan_id in provider.accepted_plans and provider.specialty in plan.copays
        assert visit["payment"] == ("insurance" if covered else "self_pay")
        payments.add(visit["payment"])
        if covered and provider.specialty in plan.referral_specialties:
            valid = [r.valid_until for r in patient.referrals if r.specialty == provider.specialty]
            assert max(valid) >= visit["date"]
    assert payments == {"insurance", "self_pay"}


def test_booked_visits_suit_age_history_and_the_patients_other_visits(
    records: HealthcareDB, mixed: list[Task], hardest: list[Task]
) -> None:
    for visit in made(mixed + hardest, "schedule_appointment"):
        patient = records.patients[visit["patient_id"]]
        provider = records.providers[visit["provider_id"]]
        assert provider.min_age <= age_on(patient, visit["date"]) <= provider.max_age
        if provider.provider_id not in patient.providers_seen:
            assert provider.accepts_new_patients
            assert visit["visit_type"] == "in_person"
        assert provider.offers_video or visit["visit_type"] == "in_person"
        starts = {each.start for each in coming(records, patient)}
        assert f"{visit['date']} {visit['time']}" not in starts


def test_moved_visits_are_a_day_away_and_not_worn_out(
    records: HealthcareDB, mixed: list[Task], hardest: list[Task]
) -> None:
    moves = made(mixed + hardest, "reschedule_appointment")
    assert len(moves) > 50
    for move in moves:
        visit = records.appointments[move["appointment_id"]]
        assert visit.start >= DAY_AHEAD
        assert visit.times_moved < 2


def test_cancellations_cost_what_the_policy_says(
    records: HealthcareDB, mixed: list[Task], hardest: list[Task]
) -> None:
    fees: set[bool] = set()
    for given in made(mixed + hardest, "cancel_appointment"):
        visit = records.appointments[given["appointment_id"]]
        late = NOW < visit.start < DAY_AHEAD
        spared = given["reason"] == "illness"
        spared |= records.patients[visit.patient_id].late_cancellations == 0
        assert given["fee"] == (visit.late_fee if late and not spared else 0)
        fees.add(bool(given["fee"]))
    assert fees == {True, False}


def test_refills_are_due_left_and_seen_to(
    records: HealthcareDB, mixed: list[Task], hardest: list[Task]
) -> None:
    today = date.fromisoformat(TODAY)
    for given in made(mixed + hardest, "request_refill"):
        each = records.prescriptions[given["prescription_id"]]
        runs_out = date.fromisoformat(each.last_filled) + timedelta(days=each.days_supply)
        assert (each.status, each.refills_left > 0, each.expires >= TODAY) == ("active", True, True)
        assert runs_out - today <= timedelta(days=7)
        if each.is_controlled:
            patient = records.patients[each.patient_id]
            visits = [records.appointments[number] for number in patient.past_appointments]
            days = [v.date for v in visits if v.provider_id == each.prescriber_id]
            assert max(days) >= (today - timedelta(days=90)).isoformat()


def test_whoever_calls_for_another_is_their_representative(
    records: HealthcareDB, hardest: list[Task]
) -> None:
    found = 0
    for task in hardest:
        if not re.search(r"You call about your (child|partner)", story(task).known_info or ""):
            continue
        read = [a["patient_id"] for a in made([task], "get_patient_info")]
        assert read[0] in records.patients[read[1]].representatives
        found += 1
    assert found > 30
