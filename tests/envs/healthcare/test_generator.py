"""Generated healthcare tasks: solved by their gold calls, reproducible, consistent texts."""

import re
from collections.abc import Sequence
from datetime import date
from typing import Any

import pytest

from grpo_cl.envs.generation.tasks import in_split
from grpo_cl.envs.healthcare.database import HealthcareDB
from grpo_cl.envs.healthcare.domain import HealthcareDomain
from grpo_cl.errors import ConfigError
from grpo_cl.rollout.baselines import score_baselines
from grpo_cl.types import Action, Task
from healthcare_tasks import WRITE_TOOLS, gold_arguments, instructions_of, purpose, writes


def final_changes(
    domain: HealthcareDomain, task: Task, actions: Sequence[Action]
) -> dict[Any, Any]:
    environment = domain.environment(task)
    for action in actions:
        result = environment.call(action.call)
        assert not result.error, (task.id, action, result.content)
    return dict(environment.state().agent)


# Gold calls and splits.


@pytest.mark.parametrize("split", ["train", "test"])
def test_gold_calls_score_one_and_doing_nothing_scores_one_only_for_refusals(
    healthcare: HealthcareDomain, split: str
) -> None:
    for task in healthcare.generate(seed=5, count=60, split=split):
        score = score_baselines(healthcare, task)
        assert (score.gold, score.idle) == (1.0, float(task.is_refusal)), task.id


def test_final_state_does_not_depend_on_the_order_of_requests(
    healthcare: HealthcareDomain, hard_tasks: list[Task]
) -> None:
    for task in hard_tasks:
        steps = writes(task)
        assert final_changes(healthcare, task, steps) == final_changes(
            healthcare, task, steps[::-1]
        )


def test_tasks_are_reproducible_and_differ_between_seeds(
    healthcare: HealthcareDomain,
) -> None:
    first, again = (healthcare.generate(seed=3, count=20) for _ in range(2))
    other = healthcare.generate(seed=4, count=20)
    assert first == again
    assert not {task.ticket for task in first} & {task.ticket for task in other}


def test_larger_count_appends_tasks_and_a_task_is_found_by_its_id(
    healthcare: HealthcareDomain,
) -> None:
    short = healthcare.generate(seed=5, count=5, difficulty=0.5)
    assert healthcare.generate(seed=5, count=15, difficulty=0.5)[:5] == short
    assert short[4].id == "healthcare-gen-train-5-0.5-4"
    assert healthcare.task(short[4].id) == short[4]


def test_train_and_test_tasks_share_no_household(
    healthcare: HealthcareDomain, database: HealthcareDB, mixed_tasks: list[Task]
) -> None:
    tasks_by_split = {
        "train": [*mixed_tasks, *healthcare.tasks("train")],
        "test": [*healthcare.generate(seed=11, count=80, split="test"), *healthcare.tasks("test")],
    }
    for split, tasks in tasks_by_split.items():
        for task in tasks:
            text = task.model_dump_json()
            owners = {database.appointments[n].patient_id for n in re.findall(r"AP\d+", text)}
            owners |= {database.prescriptions[n].patient_id for n in re.findall(r"RX\d+", text)}
            for number in owners | set(re.findall(r"PT\d+", text)):
                assert in_split(database.patients[number].address, split)


@pytest.mark.slow
def test_many_tasks_have_distinct_gold_calls_and_tickets(healthcare: HealthcareDomain) -> None:
    for difficulty in (0.0, 1.0):
        tasks = healthcare.generate(seed=1, count=400, difficulty=difficulty)
        golds = {str([(a.name, a.arguments) for a in task.gold_actions]) for task in tasks}
        assert len(golds) >= 400 - sum(task.is_refusal for task in tasks)
        assert len({task.ticket for task in tasks}) == 400


# Difficulty.


def test_easiest_tasks_have_one_allowed_request(
    healthcare: HealthcareDomain,
) -> None:
    for task in healthcare.generate(seed=2, count=150, difficulty=0.0):
        assert len(writes(task)) == 1
        assert not task.is_refusal
        assert "refused" not in purpose(task)
        assert instructions_of(task).unknown_info is None


def test_number_of_writes_grows_with_difficulty(healthcare: HealthcareDomain) -> None:
    means: list[float] = []
    for difficulty in (0.0, 0.3, 0.6, 1.0):
        tasks = healthcare.generate(seed=6, count=100, difficulty=difficulty)
        counts = [len(writes(task)) for task in tasks if not task.is_refusal]
        means.append(sum(counts) / len(counts))
    assert means == sorted(means)
    assert means[0] == 1
    assert 3 <= means[-1] <= 4


def test_shares_of_refusal_tasks_and_of_forbidden_requests(
    mixed_tasks: list[Task], hard_tasks: list[Task]
) -> None:
    assert 0.02 < sum(task.is_refusal for task in mixed_tasks) / len(mixed_tasks) < 0.12
    combined = [t for t in hard_tasks if not t.is_refusal and "refused:" in purpose(t)]
    assert 0.15 < len(combined) / len(hard_tasks) < 0.5


def test_every_write_tool_and_every_forbidden_request_occurs(
    mixed_tasks: list[Task], hard_tasks: list[Task]
) -> None:
    assert {action.name for task in mixed_tasks for action in writes(task)} == WRITE_TOOLS
    purposes = " ".join(purpose(task) for task in mixed_tasks + hard_tasks)
    for violation in ("coverage", "referral", "age", "new patient", "first by video", "clash"):
        assert f"book in spite of: {violation}" in purposes
    for cause in ("so late", "too often"):
        assert f"move an appointment {cause}" in purposes
    for violation in ("early", "no refills", "expired", "controlled"):
        assert re.search(rf"refill in spite of: [^;]*{violation}", purposes), violation
    assert "act for somebody else" in purposes
    assert "be handed over" in purposes


def test_invalid_difficulty_or_split_is_an_error(healthcare: HealthcareDomain) -> None:
    with pytest.raises(ConfigError, match=r"1\.5"):
        healthcare.generate(seed=0, count=1, difficulty=1.5)
    with pytest.raises(ConfigError, match="dev"):
        healthcare.generate(seed=0, count=1, split="dev")


# Texts.


def test_earliest_time_is_the_first_free_time_that_does_not_clash(
    database: HealthcareDB, hard_tasks: list[Task]
) -> None:
    pattern = re.compile(r"the earliest free( morning| afternoon)? time on or after \w+, (\w+ \d+)")
    num_searches = 0
    for task in hard_tasks:
        phrases = pattern.findall(instructions_of(task).reason_for_call)
        searches = [
            s
            for s in gold_arguments([task], "get_available_slots")
            if s["start_date"] != s["end_date"]
        ]
        slots = {
            (a.arguments.get("provider_id"), a.arguments["date"], a.arguments["time"])
            for a in writes(task)
            if "time" in a.arguments
        }
        for (half, day), search in zip(phrases, searches, strict=True):
            first = date.fromisoformat(search["start_date"])
            assert day == f"{first:%B} {first.day}"
            provider_id = search["provider_id"]
            free = [
                (provider_id, calendar_day.date, time)
                for calendar_day in database.calendars.values()
                if calendar_day.provider_id == provider_id
                and search["start_date"] <= calendar_day.date <= search["end_date"]
                for time in calendar_day.free
                if not half or (time < "12:00") == (half == " morning")
            ]
            chosen = [slot for slot in free if slot in slots or (None, *slot[1:]) in slots]
            assert chosen
            skipped = free[: free.index(chosen[0])]
            starts = {visit.start for visit in database.appointments.values()}
            assert all(f"{slot[1]} {slot[2]}" in starts for slot in skipped)
            num_searches += 1
    assert num_searches > 150


def test_ticket_uses_the_third_person_and_the_instructions_the_second(
    mixed_tasks: list[Task],
) -> None:
    for task in mixed_tasks:
        instructions, ticket = instructions_of(task), task.ticket or ""
        assert instructions.reason_for_call.startswith("You ")
        assert not re.search(
            r"\btheir\b|\bthey\b|[{}]", instructions.reason_for_call, re.IGNORECASE
        )
        assert not re.search(r"\byour?\b|[{}]", ticket, re.IGNORECASE)
        match = re.match(
            r"You are (\w+ \w+) and your date of birth is (\S+)\.", instructions.known_info or ""
        )
        assert match
        assert match[1] in ticket
        assert match[2] in ticket


def test_facts_to_communicate_occur_in_tool_results_and_not_in_the_texts(
    healthcare: HealthcareDomain, hard_tasks: list[Task]
) -> None:
    num_answers = 0
    for task in hard_tasks:
        for answer in task.communicate_info:
            environment = healthcare.environment(task)
            shown = " ".join(environment.call(action.call).content for action in task.gold_actions)
            assert answer in shown
            assert answer not in f"{instructions_of(task)} {task.ticket}"
            assert "exact" in instructions_of(task).reason_for_call
            assert "exact" in (task.ticket or "")
            assert len(answer) >= 4
            num_answers += 1
    assert num_answers > 20
