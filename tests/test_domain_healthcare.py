"""The clinics: consistent records, cheap episodes, frozen tasks."""

import time
from collections import Counter

import pytest

from grpo_cl.audit import audit_task, summarize
from grpo_cl.cli import main
from grpo_cl.config import RolloutConfig
from grpo_cl.demonstrations import demonstrate
from grpo_cl.domains.healthcare.builder import build_database, working_days
from grpo_cl.domains.healthcare.database import NOW, TODAY, Appointment, HealthcareDB, age_on
from grpo_cl.domains.healthcare.domain import HealthcareDomain
from grpo_cl.domains.healthcare.rules import is_late, upcoming
from grpo_cl.domains.overlay import to_json
from grpo_cl.rewards import RewardOracle
from grpo_cl.rollout import ScriptedActor, run_episodes
from grpo_cl.types import Task, ToolCall

RELEASE = "tasks sha256:21541bbe23b2"
"""A change of the tasks is a change of the benchmark: scores are not comparable across it."""


@pytest.fixture(scope="module")
def healthcare() -> HealthcareDomain:
    return HealthcareDomain()


@pytest.fixture(scope="module")
def records() -> HealthcareDB:
    return build_database()


def some_visit(records: HealthcareDB, *, late: bool) -> Appointment:
    return next(
        visit
        for visit in records.appointments.values()
        if visit.status == "scheduled" and is_late(visit) == late
    )


# Records.


def test_the_clinics_are_of_a_realistic_size(records: HealthcareDB) -> None:
    assert len(records.patients) > 400
    assert len(records.providers) == 40
    assert len({each.specialty for each in records.providers.values()}) == 8
    assert len(records.clinics) == len(records.plans) == 6
    assert len(records.appointments) > 1000
    assert len(records.prescriptions) > 400


def test_the_database_is_built_alike_every_time(records: HealthcareDB) -> None:
    assert to_json(build_database.__wrapped__()) == to_json(records)


def test_every_reference_between_records_is_met(records: HealthcareDB) -> None:
    for visit in records.appointments.values():
        owner = records.patients[visit.patient_id]
        mine = owner.upcoming_appointments + owner.past_appointments
        assert visit.appointment_id in mine
        assert visit.provider_id in records.providers
        assert (visit.start > NOW) == (visit.status == "scheduled")
    for each in records.prescriptions.values():
        assert each.patient_id in records.patients
        assert records.providers[each.prescriber_id]
    for patient in records.patients.values():
        assert patient.plan_id in records.plans
        for other in patient.representatives:
            assert age_on(records.patients[other], TODAY) >= 18


def test_nobody_is_booked_twice_and_nothing_free_is_taken(records: HealthcareDB) -> None:
    visits = [each for each in records.appointments.values() if each.status == "scheduled"]
    assert max(Counter((each.provider_id, each.start) for each in visits).values()) == 1
    assert max(Counter((each.patient_id, each.date) for each in visits).values()) == 1
    for each in visits:
        day = records.calendars[f"{each.provider_id}/{each.date}"]
        assert each.time not in day.free


def test_name_and_birth_date_tell_patients_apart(records: HealthcareDB) -> None:
    people = [(p.first_name, p.last_name, p.birth_date) for p in records.patients.values()]
    assert len(set(people)) == len(people)


def test_calendars_cover_six_weeks_of_working_days() -> None:
    days = working_days()
    assert (days[0], days[-1], len(days)) == (TODAY, "2026-06-12", 30)


# Episodes.


def test_one_episode_never_sees_another_and_thousands_live_cheaply(
    healthcare: HealthcareDomain, records: HealthcareDB
) -> None:
    task, visit = healthcare.tasks("train")[0], some_visit(records, late=False)
    given = {"appointment_id": visit.appointment_id, "reason": "illness", "fee": 0}
    call = ToolCall.model_validate({"name": "cancel_appointment", "arguments": given})
    before = to_json(records)
    started = time.process_time()
    worlds = [healthcare.environment(task) for _ in range(3000)]
    for world in worlds[::2]:
        assert not world.call(call).error
    assert time.process_time() - started < 3
    assert all(bool(world.state().agent) == (n % 2 == 0) for n, world in enumerate(worlds[:50]))
    assert to_json(records) == before


def test_the_state_hash_tells_worlds_apart_and_knows_equal_ones(
    healthcare: HealthcareDomain,
) -> None:
    task = next(task for task in healthcare.tasks("train") if not task.is_refusal)
    untouched, one, other = (healthcare.environment(task) for _ in range(3))
    for action in task.gold_actions:
        one.call(action.call)
        other.call(action.call)
    assert one.state_hash() == other.state_hash()
    assert one.state_hash() != untouched.state_hash()


# Tasks.


def test_train_and_test_have_the_sizes_of_the_other_domains(healthcare: HealthcareDomain) -> None:
    splits = {name: list(ids) for name, ids in healthcare.splits.items()}
    assert {name: len(ids) for name, ids in splits.items()} == {
        "train": 74,
        "test": 40,
        "base": 114,
    }
    assert splits["train"] + splits["test"] == splits["base"]
    assert len(set(splits["base"])) == 114


def test_the_numbered_tasks_are_frozen(healthcare: HealthcareDomain) -> None:
    assert healthcare.release.endswith(RELEASE)
    assert healthcare.task("healthcare-17") == HealthcareDomain().task("healthcare-17")
    assert healthcare.has_task("healthcare-113")
    assert not healthcare.has_task("healthcare-114")


@pytest.mark.parametrize("split", ["train", "test"])
def test_gold_solves_every_task_and_doing_nothing_only_refusals(
    healthcare: HealthcareDomain, split: str
) -> None:
    tasks = healthcare.tasks(split)
    audits = [audit_task(healthcare, task) for task in tasks]
    for task, audit in zip(tasks, audits, strict=True):
        assert audit.gold == 1.0, task.id
        assert audit.idle == audit.transfer == float(task.is_refusal), task.id
    assert 0 < summarize(audits)["refusals"] <= len(tasks) // 8


def gold(task: Task) -> list[ToolCall]:
    return [action.call for action in task.gold_actions]


def told(task: Task) -> str:
    criteria = task.evaluation_criteria
    return " ".join((criteria.communicate_info or ()) if criteria else ())


@pytest.mark.parametrize("user", ["scripted", "solo"])
def test_the_gold_solution_played_as_an_episode_solves_every_test_task(
    healthcare: HealthcareDomain, user: str
) -> None:
    domains = {"healthcare": healthcare}
    actor = ScriptedActor(gold, closing=told)
    tasks = healthcare.tasks("test")
    for played in run_episodes(actor, domains, tasks, RolloutConfig(user=user)):
        silent = user == "solo" and told(played.task)  # nobody to tell
        assert RewardOracle(domains).score(played).value == float(not silent), played.task.id


def test_demonstrations_solve_their_tasks_alone(healthcare: HealthcareDomain) -> None:
    tasks = healthcare.generate(seed=2, count=30, difficulty=0.0)
    shown = [demonstrate(healthcare, task) for task in tasks]
    known = [each for each in shown if each is not None]
    assert len(known) == 30
    assert all(len(each.tool_calls) <= len(each.task.gold_actions) for each in known)


def test_the_policy_is_one_text_that_names_the_time_of_the_episodes(
    healthcare: HealthcareDomain,
) -> None:
    assert f"{TODAY}, {NOW[-5:]}" in healthcare.policy_text()
    assert healthcare.policy_text(solo=True) == healthcare.policy_text()


def test_the_commands_check_and_play_the_domain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "check", "--domain", "healthcare", "--split", "test"]) == 0
    assert "healthcare/test" in capsys.readouterr().out
    assert main(["play", "--scripted", "--domain", "healthcare", "--count", "5"]) == 0
    assert "1.00" in capsys.readouterr().out


def test_a_patient_with_two_visits_shows_both_in_order(records: HealthcareDB) -> None:
    patient = next(p for p in records.patients.values() if len(p.upcoming_appointments) > 1)
    visits = upcoming(records, patient)
    assert [visit.start for visit in visits] == sorted(visit.start for visit in visits)
    assert {visit.appointment_id for visit in visits} == set(patient.upcoming_appointments)
