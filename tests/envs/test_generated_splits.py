"""Contract of all task generators: test tasks combine taught skills anew, for other customers."""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from itertools import chain
from typing import NamedTuple

import pytest

from grpo_cl.envs import DOMAINS, load_domain
from grpo_cl.envs.generation.tasks import TEST_SHARE, allows_skills, skill_set
from grpo_cl.envs.tau2 import Tau2Domain
from grpo_cl.types import Task

GetDomain = Callable[[str], Tau2Domain]

LEVELS = (0.0, 0.2, 0.5, 0.8, 1.0)
GENERATORS = ("airline", "retail", "telecom", "healthcare", "doordash", "memory")
OWNED = {
    "airline": ("user_id", "reservation_id"),
    "retail": ("user_id", "email", "order_id"),
    "healthcare": ("patient_id", "appointment_id", "prescription_id"),
    "doordash": ("customer_id", "order_id"),
}
"""Arguments of gold calls that name a customer or what belongs to one."""


def entities(task: Task) -> set[str]:
    """What a task shares with no task of the other split: customers, lines or persons."""
    if task.domain == "telecom":
        assert task.initial_state is not None
        calls = task.initial_state.initialization_actions or ()
        return {
            str(call.arguments["phone_number"])
            for call in calls
            if call.func_name == "set_user_info"
        }
    if task.domain == "memory":
        contents = (str(action.arguments.get("content", "")) for action in task.gold_actions)
        return {text.split()[0].removesuffix("'s") for text in contents if text}
    return {
        str(value)
        for action in task.gold_actions
        for name, value in action.arguments.items()
        if name in OWNED[task.domain]
    }


def skills_of(tasks: Iterable[Task]) -> Counter[str]:
    return Counter(skill for task in tasks for skill in task.skills)


@cache
def generated(name: str, split: str, level: float, count: int) -> list[Task]:
    return load_domain(name).generate(seed=0, count=count, split=split, difficulty=level)


class Sample(NamedTuple):
    """Numbers of tasks to draw."""

    train: int
    test: int
    rare: int
    """A skill of fewer test tasks may be missing in the training tasks by chance."""


FEW = {"telecom": Sample(150, 40, 4), "memory": Sample(20, 8, 5)}
SOME = Sample(48, 16, 3)
MANY = {"memory": Sample(150, 40, 1)}
MOST = Sample(600, 150, 3)


def assert_contract(name: str, level: float, sample: Sample) -> None:
    taught = generated(name, "train", level, sample.train)
    tested = generated(name, "test", level, sample.test)
    for task in (*taught, *tested):
        assert task.skills == skill_set(task.skills) != ()
    counts = skills_of(tested)
    assert {s for s, count in counts.items() if count >= sample.rare} <= skills_of(taught).keys()
    owners = [set(chain.from_iterable(map(entities, tasks))) for tasks in (taught, tested)]
    assert all(owners) and not owners[0] & owners[1]
    several = [{t.skills for t in tasks if len(t.skills) > 1} for tasks in (taught, tested)]
    assert not several[0] & several[1]


def test_every_domain_with_a_generator_is_covered(domain: GetDomain) -> None:
    assert {name for name in DOMAINS if domain(name).can_generate} - {"telecom-workflow"} == set(
        GENERATORS
    )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", GENERATORS)
def test_test_tasks_need_taught_skills_in_new_combinations_for_new_customers(
    name: str, level: float
) -> None:
    assert_contract(name, level, FEW.get(name, SOME))


@pytest.mark.slow
@pytest.mark.parametrize("level", (0.2, 0.8))
@pytest.mark.parametrize("name", GENERATORS)
def test_every_skill_of_two_in_a_hundred_test_tasks_is_taught(name: str, level: float) -> None:
    assert_contract(name, level, MANY.get(name, MOST))


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", GENERATORS)
def test_every_skill_occurs_in_combinations_of_both_splits(name: str) -> None:
    sample = MANY.get(name, MOST)
    train, test = (
        [t for level in LEVELS[1:] for t in generated(name, split, level, count) if t.skills[1:]]
        for split, count in (("train", sample.train), ("test", sample.test))
    )
    frequent = {skill for skill, count in skills_of(train).items() if count >= 60}
    assert frequent <= skills_of(test).keys() <= skills_of(train).keys()
    num_sets = [len({task.skills for task in tasks}) for tasks in (train, test)]
    assert num_sets[1] > 50


def test_both_splits_have_equal_shares_of_tasks_with_several_skills() -> None:
    shares = [
        sum(len(task.skills) > 1 for task in generated("retail", split, 0.2, 100)) / 100
        for split in ("train", "test")
    ]
    assert shares[0] == pytest.approx(shares[1], abs=0.15)


def test_one_skill_is_in_both_splits_and_one_set_in_five_is_in_test() -> None:
    assert allows_skills(["cancel"], "train") and allows_skills(["cancel"], "test")
    sets = [skill_set((f"skill {n}", f"skill {m}")) for n in range(60) for m in range(n)]
    in_test = [allows_skills(skills, "test") for skills in sets]
    assert [not allows_skills(skills, "train") for skills in sets] == in_test
    assert sum(in_test) / len(sets) == pytest.approx(1 / TEST_SHARE, abs=0.02)


def test_tasks_with_a_single_telecom_fault_have_all_faults_in_both_splits() -> None:
    train, test = (
        {task.skills for task in generated("telecom", split, 0.0, 300)}
        for split in ("train", "test")
    )
    assert train == test and len(train) == 18


def test_a_task_file_without_skills_is_read() -> None:
    stored = generated("retail", "train", 0.0, 48)[0].model_dump(mode="json")
    assert stored.pop("skills")
    assert Task.model_validate(stored).skills == ()
