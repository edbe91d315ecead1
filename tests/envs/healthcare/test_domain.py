"""Healthcare domain: consistent database, independent episodes, reproducible tasks."""

import time
from collections import Counter

import pytest

from grpo_cl.cli import main
from grpo_cl.config import RolloutConfig
from grpo_cl.envs.database import to_json
from grpo_cl.envs.healthcare.database import NOW, TODAY, Appointment, HealthcareDB, age_on
from grpo_cl.envs.healthcare.database_builder import build_database, working_days
from grpo_cl.envs.healthcare.domain import HealthcareDomain
from grpo_cl.envs.healthcare.rules import is_late, upcoming
from grpo_cl.rewards import RewardOracle
from grpo_cl.rollout import ScriptedActor, run_episodes
from grpo_cl.rollout.baselines import score_baselines, summarize
from grpo_cl.rollout.demonstrations import demonstrate
from grpo_cl.types import Task, ToolCall

RELEASE = "tasks sha256:9db65e800b9b"
"""A change of the tasks is a change of the benchmark: scores are not comparable across it."""


def find_visit(database: HealthcareDB, *, late: bool) -> Appointment:
    return next(
        visit
        for visit in database.appointments.values()
        if visit.status == "scheduled" and is_late(visit) == late
    )


# Database.


def test_database_has_realistic_size(database: HealthcareDB) -> None:
    assert len(database.patients) > 400
    assert len(database.providers) == 40
    assert len({provider.specialty for provider in database.providers.values()}) == 8
    assert len(database.clinics) == len(database.plans) == 6
    assert len(database.appointments) > 1000
    assert len(database.prescriptions) > 400


def test_built_database_is_reproducible(database: HealthcareDB) -> None:
    assert to_json(build_database.__wrapped__()) == to_json(database)


def test_references_between_records_are_valid(database: HealthcareDB) -> None:
    for visit in database.appointments.values():
        owner = database.patients[visit.patient_id]
        assert visit.appointment_id in owner.upcoming_appointments + owner.past_appointments
        assert visit.provider_id in database.providers
        assert (visit.start > NOW) == (visit.status == "scheduled")
    for prescription in database.prescriptions.values():
        assert prescription.patient_id in database.patients
        assert database.providers[prescription.prescriber_id]
    for patient in database.patients.values():
        assert patient.plan_id in database.plans
        for other in patient.representatives:
            assert age_on(database.patients[other], TODAY) >= 18


def test_visits_do_not_overlap_and_booked_times_are_not_free(database: HealthcareDB) -> None:
    visits = [visit for visit in database.appointments.values() if visit.status == "scheduled"]
    assert max(Counter((visit.provider_id, visit.start) for visit in visits).values()) == 1
    assert max(Counter((visit.patient_id, visit.date) for visit in visits).values()) == 1
    for visit in visits:
        day = database.calendars[f"{visit.provider_id}/{visit.date}"]
        assert visit.time not in day.free


def test_name_and_birth_date_identify_a_patient(database: HealthcareDB) -> None:
    people = [(p.first_name, p.last_name, p.birth_date) for p in database.patients.values()]
    assert len(set(people)) == len(people)


def test_calendars_cover_six_weeks_of_working_days() -> None:
    days = working_days()
    assert (days[0], days[-1], len(days)) == (TODAY, "2026-06-12", 30)


# Episodes.


def test_thousands_of_environments_are_cheap_and_do_not_share_state(
    healthcare: HealthcareDomain, database: HealthcareDB
) -> None:
    task, visit = healthcare.tasks("train")[0], find_visit(database, late=False)
    arguments = {"appointment_id": visit.appointment_id, "reason": "illness", "fee": 0}
    call = ToolCall.model_validate({"name": "cancel_appointment", "arguments": arguments})
    before = to_json(database)
    started = time.process_time()
    environments = [healthcare.environment(task) for _ in range(3000)]
    for environment in environments[::2]:
        assert not environment.call(call).error
    assert time.process_time() - started < 3
    assert all(
        bool(environment.state().agent) == (n % 2 == 0)
        for n, environment in enumerate(environments[:50])
    )
    assert to_json(database) == before


def test_state_hash_is_equal_for_equal_states_only(
    healthcare: HealthcareDomain,
) -> None:
    task = next(task for task in healthcare.tasks("train") if not task.is_refusal)
    unchanged, first, second = (healthcare.environment(task) for _ in range(3))
    for action in task.gold_actions:
        first.call(action.call)
        second.call(action.call)
    assert first.state_hash() == second.state_hash()
    assert first.state_hash() != unchanged.state_hash()


# Tasks.


def test_split_sizes_match_the_other_domains(healthcare: HealthcareDomain) -> None:
    splits = {name: list(ids) for name, ids in healthcare.splits.items()}
    assert {name: len(ids) for name, ids in splits.items()} == {
        "train": 74,
        "test": 40,
        "base": 114,
    }
    assert splits["train"] + splits["test"] == splits["base"]
    assert len(set(splits["base"])) == 114


def test_tasks_are_reproducible_and_match_the_published_release_hash(
    healthcare: HealthcareDomain,
) -> None:
    assert healthcare.release.endswith(RELEASE)
    assert healthcare.task("healthcare-17") == HealthcareDomain().task("healthcare-17")
    assert healthcare.has_task("healthcare-113")
    assert not healthcare.has_task("healthcare-114")


@pytest.mark.parametrize("split", ["train", "test"])
def test_gold_calls_solve_every_task_and_the_baselines_only_refusals(
    healthcare: HealthcareDomain, split: str
) -> None:
    tasks = healthcare.tasks(split)
    scores = [score_baselines(healthcare, task) for task in tasks]
    for task, score in zip(tasks, scores, strict=True):
        assert score.gold == 1.0, task.id
        assert score.idle == score.transfer == float(task.is_refusal), task.id
    assert 0 < summarize(scores)["refusals"] <= len(tasks) // 8


def gold_calls(task: Task) -> list[ToolCall]:
    return [action.call for action in task.gold_actions]


def communicated_text(task: Task) -> str:
    return " ".join(task.communicate_info)


@pytest.mark.parametrize("user", ["scripted", "solo"])
def test_gold_calls_solve_every_test_task_as_an_episode(
    healthcare: HealthcareDomain, user: str
) -> None:
    domains = {"healthcare": healthcare}
    actor = ScriptedActor(gold_calls, closing=communicated_text)
    tasks = healthcare.tasks("test")
    for trajectory in run_episodes(actor, domains, tasks, RolloutConfig(user=user)):
        # Without a user, facts cannot be communicated, so these tasks fail.
        is_unsolvable = user == "solo" and communicated_text(trajectory.task)
        score = RewardOracle(domains).score(trajectory)
        assert score.value == float(not is_unsolvable), trajectory.task.id


def test_solo_demonstrations_solve_the_easiest_tasks(healthcare: HealthcareDomain) -> None:
    tasks = healthcare.generate(seed=2, count=30, difficulty=0.0)
    trajectories = [demonstrate(healthcare, task) for task in tasks]
    solved = [trajectory for trajectory in trajectories if trajectory is not None]
    assert len(solved) == 30
    assert all(len(t.tool_calls) <= len(t.task.gold_actions) for t in solved)


def test_policy_states_the_simulated_time_and_is_the_same_in_solo_mode(
    healthcare: HealthcareDomain,
) -> None:
    assert f"{TODAY}, {NOW[-5:]}" in healthcare.policy_text()
    assert healthcare.policy_text(solo=True) == healthcare.policy_text()


def test_commands_check_and_play_the_domain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "check", "--domain", "healthcare", "--split", "test"]) == 0
    assert "healthcare/test" in capsys.readouterr().out
    assert main(["play", "--scripted", "--domain", "healthcare", "--count", "5"]) == 0
    assert "1.00" in capsys.readouterr().out


def test_upcoming_visits_are_sorted_and_complete(database: HealthcareDB) -> None:
    patient = next(p for p in database.patients.values() if len(p.upcoming_appointments) > 1)
    visits = upcoming(database, patient)
    assert [visit.start for visit in visits] == sorted(visit.start for visit in visits)
    assert {visit.appointment_id for visit in visits} == set(patient.upcoming_appointments)
