"""Generated healthcare tasks: solvable by their gold, reproducible, clear in their words."""

import re
from collections.abc import Sequence
from datetime import date
from typing import Any

import pytest

from grpo_cl.audit import audit_task
from grpo_cl.domains.generators.draft import in_split
from grpo_cl.domains.healthcare.builder import build_database
from grpo_cl.domains.healthcare.database import HealthcareDB
from grpo_cl.domains.healthcare.domain import HealthcareDomain
from grpo_cl.errors import ConfigError
from grpo_cl.types import Action, Task
from healthcare_stories import WRITES, made, purpose, story, writes


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


def after(domain: HealthcareDomain, task: Task, actions: Sequence[Action]) -> dict[Any, Any]:
    world = domain.environment(task)
    for action in actions:
        result = world.call(action.call)
        assert not result.error, (task.id, action, result.content)
    return dict(world.state().agent)


# Sound.


@pytest.mark.parametrize("split", ["train", "test"])
def test_gold_scores_one_and_doing_nothing_zero_unless_refusal_is_right(
    healthcare: HealthcareDomain, split: str
) -> None:
    for task in healthcare.generate(seed=5, count=60, split=split):
        audit = audit_task(healthcare, task)
        assert (audit.gold, audit.idle) == (1.0, float(task.is_refusal)), task.id


def test_the_order_in_which_an_agent_handles_the_requests_does_not_matter(
    healthcare: HealthcareDomain, hardest: list[Task]
) -> None:
    for task in hardest:
        steps = writes(task)
        assert after(healthcare, task, steps) == after(healthcare, task, steps[::-1])


def test_the_same_seed_gives_the_same_tasks_and_another_seed_others(
    healthcare: HealthcareDomain,
) -> None:
    first, again = (healthcare.generate(seed=3, count=20) for _ in range(2))
    other = healthcare.generate(seed=4, count=20)
    assert first == again
    assert not {task.ticket for task in first} & {task.ticket for task in other}


def test_a_longer_list_begins_with_the_shorter_and_an_id_finds_its_task(
    healthcare: HealthcareDomain,
) -> None:
    short = healthcare.generate(seed=5, count=5, difficulty=0.5)
    assert healthcare.generate(seed=5, count=15, difficulty=0.5)[:5] == short
    assert short[4].id == "healthcare-gen-train-5-0.5-4"
    assert healthcare.task(short[4].id) == short[4]


def test_train_and_test_share_no_patient_and_no_household(
    healthcare: HealthcareDomain, records: HealthcareDB, mixed: list[Task]
) -> None:
    halves = {
        "train": [*mixed, *healthcare.tasks("train")],
        "test": [*healthcare.generate(seed=11, count=80, split="test"), *healthcare.tasks("test")],
    }
    for split, tasks in halves.items():
        for task in tasks:
            text = task.model_dump_json()
            owners = {records.appointments[n].patient_id for n in re.findall(r"AP\d+", text)}
            owners |= {records.prescriptions[n].patient_id for n in re.findall(r"RX\d+", text)}
            for number in owners | set(re.findall(r"PT\d+", text)):
                assert in_split(records.patients[number].address, split)


def test_many_tasks_differ_in_what_they_ask(healthcare: HealthcareDomain) -> None:
    for difficulty in (0.0, 1.0):
        tasks = healthcare.generate(seed=1, count=400, difficulty=difficulty)
        golds = {str([(a.name, a.arguments) for a in task.gold_actions]) for task in tasks}
        assert len(golds) >= 400 - sum(task.is_refusal for task in tasks)
        assert len({task.ticket for task in tasks}) == 400


# The dial.


def test_the_easiest_tasks_have_one_write_and_nothing_to_refuse(
    healthcare: HealthcareDomain,
) -> None:
    for task in healthcare.generate(seed=2, count=150, difficulty=0.0):
        assert len(writes(task)) == 1
        assert not task.is_refusal
        assert "refused" not in purpose(task)
        assert story(task).unknown_info is None


def test_writes_grow_with_difficulty(healthcare: HealthcareDomain) -> None:
    means: list[float] = []
    for difficulty in (0.0, 0.3, 0.6, 1.0):
        tasks = healthcare.generate(seed=6, count=100, difficulty=difficulty)
        counts = [len(writes(task)) for task in tasks if not task.is_refusal]
        means.append(sum(counts) / len(counts))
    assert means == sorted(means)
    assert means[0] == 1
    assert 3 <= means[-1] <= 4


def test_refusals_stay_a_small_share_and_traps_stand_beside_granted_requests(
    mixed: list[Task], hardest: list[Task]
) -> None:
    assert 0.02 < sum(task.is_refusal for task in mixed) / len(mixed) < 0.12
    trapped = [t for t in hardest if not t.is_refusal and "refused:" in purpose(t)]
    assert 0.15 < len(trapped) / len(hardest) < 0.5


def test_every_kind_of_write_and_of_trap_occurs(mixed: list[Task], hardest: list[Task]) -> None:
    assert {action.name for task in mixed for action in writes(task)} == WRITES
    told = " ".join(purpose(task) for task in mixed + hardest)
    for trap in ("coverage", "referral", "age", "new patient", "first by video", "clash"):
        assert f"book in spite of: {trap}" in told
    for trap in ("so late", "too often"):
        assert f"move an appointment {trap}" in told
    for trap in ("early", "no refills", "expired", "controlled"):
        assert re.search(rf"refill in spite of: [^;]*{trap}", told), trap
    assert "act for somebody else" in told
    assert "be handed over" in told


def test_an_impossible_dial_is_refused(healthcare: HealthcareDomain) -> None:
    with pytest.raises(ConfigError, match=r"1\.5"):
        healthcare.generate(seed=0, count=1, difficulty=1.5)
    with pytest.raises(ConfigError, match="dev"):
        healthcare.generate(seed=0, count=1, split="dev")


# The words.


def test_an_earliest_time_is_the_earliest_that_does_not_clash(
    records: HealthcareDB, hardest: list[Task]
) -> None:
    pattern = re.compile(r"the earliest free( morning| afternoon)? time on or after \w+, (\w+ \d+)")
    found = 0
    for task in hardest:
        said = pattern.findall(story(task).reason_for_call)
        searches = [
            s for s in made([task], "get_available_slots") if s["start_date"] != s["end_date"]
        ]
        slots = {
            (a.arguments.get("provider_id"), a.arguments["date"], a.arguments["time"])
            for a in writes(task)
            if "time" in a.arguments
        }
        for (half, day), search in zip(said, searches, strict=True):
            first = date.fromisoformat(search["start_date"])
            assert day == f"{first:%B} {first.day}"
            number = search["provider_id"]
            free = [
                (number, each.date, time)
                for each in records.calendars.values()
                if each.provider_id == number
                and search["start_date"] <= each.date <= search["end_date"]
                for time in each.free
                if not half or (time < "12:00") == (half == " morning")
            ]
            chosen = [slot for slot in free if slot in slots or (None, *slot[1:]) in slots]
            assert chosen
            passed = free[: free.index(chosen[0])]
            starts = {visit.start for visit in records.appointments.values()}
            assert all(f"{slot[1]} {slot[2]}" in starts for slot in passed)
            found += 1
    assert found > 150


def test_texts_speak_to_the_caller_and_tickets_of_them(mixed: list[Task]) -> None:
    for task in mixed:
        told, ticket = story(task), task.ticket or ""
        assert told.reason_for_call.startswith("You ")
        assert not re.search(r"\btheir\b|\bthey\b|[{}]", told.reason_for_call, re.IGNORECASE)
        assert not re.search(r"\byour?\b|[{}]", ticket, re.IGNORECASE)
        name = re.match(
            r"You are (\w+ \w+) and your date of birth is (\S+)\.", told.known_info or ""
        )
        assert name
        assert name[1] in ticket
        assert name[2] in ticket


def test_what_is_to_be_told_is_asked_for_shown_by_a_read_and_not_given_away(
    healthcare: HealthcareDomain, hardest: list[Task]
) -> None:
    found = 0
    for task in hardest:
        criteria = task.evaluation_criteria
        for answer in (criteria and criteria.communicate_info) or ():
            world = healthcare.environment(task)
            shown = " ".join(world.call(action.call).content for action in task.gold_actions)
            assert answer in shown
            assert answer not in f"{story(task)} {task.ticket}"
            assert "exact" in story(task).reason_for_call
            assert "exact" in (task.ticket or "")
            assert len(answer) >= 4
            found += 1
    assert found > 20
