"""Generated healthcare tasks follow the policy, checked independently against the database."""

import re
from datetime import date, timedelta

from grpo_cl.envs.healthcare.database import (
    DAY_AHEAD,
    NOW,
    TODAY,
    Appointment,
    HealthcareDB,
    Patient,
    age_on,
)
from grpo_cl.types import Task
from healthcare_tasks import gold_arguments, instructions_of


def upcoming_visits(database: HealthcareDB, patient: Patient) -> list[Appointment]:
    visits = [database.appointments[number] for number in patient.upcoming_appointments]
    return [visit for visit in visits if visit.start > NOW]


def test_booked_visits_are_covered_or_self_paid_and_have_required_referrals(
    database: HealthcareDB, mixed_tasks: list[Task], hard_tasks: list[Task]
) -> None:
    payments: set[str] = set()
    for visit in gold_arguments(mixed_tasks + hard_tasks, "schedule_appointment"):
        patient = database.patients[visit["patient_id"]]
        plan, provider = database.plans[patient.plan_id], database.providers[visit["provider_id"]]
        covered = plan.plan_id in provider.accepted_plans and provider.specialty in plan.copays
        assert visit["payment"] == ("insurance" if covered else "self_pay")
        payments.add(visit["payment"])
        if covered and provider.specialty in plan.referral_specialties:
            valid = [r.valid_until for r in patient.referrals if r.specialty == provider.specialty]
            assert max(valid) >= visit["date"]
    assert payments == {"insurance", "self_pay"}


def test_booked_visits_match_age_limits_and_history_and_do_not_clash(
    database: HealthcareDB, mixed_tasks: list[Task], hard_tasks: list[Task]
) -> None:
    for visit in gold_arguments(mixed_tasks + hard_tasks, "schedule_appointment"):
        patient = database.patients[visit["patient_id"]]
        provider = database.providers[visit["provider_id"]]
        assert provider.min_age <= age_on(patient, visit["date"]) <= provider.max_age
        if provider.provider_id not in patient.providers_seen:
            assert provider.accepts_new_patients
            assert visit["visit_type"] == "in_person"
        assert provider.offers_video or visit["visit_type"] == "in_person"
        starts = {other.start for other in upcoming_visits(database, patient)}
        assert f"{visit['date']} {visit['time']}" not in starts


def test_moved_visits_are_a_day_away_and_were_not_moved_too_often(
    database: HealthcareDB, mixed_tasks: list[Task], hard_tasks: list[Task]
) -> None:
    moves = gold_arguments(mixed_tasks + hard_tasks, "reschedule_appointment")
    assert len(moves) > 50
    for move in moves:
        visit = database.appointments[move["appointment_id"]]
        assert visit.start >= DAY_AHEAD
        assert visit.times_moved < 2


def test_cancellation_fees_follow_the_policy(
    database: HealthcareDB, mixed_tasks: list[Task], hard_tasks: list[Task]
) -> None:
    fees: set[bool] = set()
    for arguments in gold_arguments(mixed_tasks + hard_tasks, "cancel_appointment"):
        visit = database.appointments[arguments["appointment_id"]]
        late = NOW < visit.start < DAY_AHEAD
        is_waived = arguments["reason"] == "illness"
        is_waived |= database.patients[visit.patient_id].late_cancellations == 0
        assert arguments["fee"] == (visit.late_fee if late and not is_waived else 0)
        fees.add(bool(arguments["fee"]))
    assert fees == {True, False}


def test_refills_are_due_and_available_and_controlled_medicines_had_a_recent_visit(
    database: HealthcareDB, mixed_tasks: list[Task], hard_tasks: list[Task]
) -> None:
    today = date.fromisoformat(TODAY)
    for arguments in gold_arguments(mixed_tasks + hard_tasks, "request_refill"):
        prescription = database.prescriptions[arguments["prescription_id"]]
        runs_out = date.fromisoformat(prescription.last_filled) + timedelta(
            days=prescription.days_supply
        )
        assert (
            prescription.status,
            prescription.refills_left > 0,
            prescription.expires >= TODAY,
        ) == ("active", True, True)
        assert runs_out - today <= timedelta(days=7)
        if prescription.is_controlled:
            patient = database.patients[prescription.patient_id]
            visits = [database.appointments[number] for number in patient.past_appointments]
            days = [v.date for v in visits if v.provider_id == prescription.prescriber_id]
            assert max(days) >= (today - timedelta(days=90)).isoformat()


def test_caller_for_another_patient_is_a_representative(
    database: HealthcareDB, hard_tasks: list[Task]
) -> None:
    num_calls = 0
    for task in hard_tasks:
        if not re.search(
            r"You call about your (child|partner)", instructions_of(task).known_info or ""
        ):
            continue
        read = [a["patient_id"] for a in gold_arguments([task], "get_patient_info")]
        assert read[0] in database.patients[read[1]].representatives
        num_calls += 1
    assert num_calls > 30
