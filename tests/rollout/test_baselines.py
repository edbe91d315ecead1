"""Contract over all domains: the rewards of three fixed policies on every task."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from grpo_cl.envs import Domain, load_domain
from grpo_cl.envs.database import to_json
from grpo_cl.rewards import RewardOracle
from grpo_cl.rollout.baselines import TaskFloors, score_baselines, score_floors, summarize
from grpo_cl.types import RewardType, Task

GetDomain = Callable[[str], Domain]

COUNTS = ("tasks", "gold", "idle", "transfer", "telling")

INSTALLED = {
    ("airline", "train"): (30, 30, 13, 13, 17),
    ("airline", "test"): (20, 20, 6, 6, 14),
    ("retail", "train"): (74, 74, 5, 5, 69),
    ("retail", "test"): (40, 40, 2, 2, 38),
    ("telecom", "train"): (74, 74, 0, 8, 66),
    ("telecom", "test"): (40, 40, 0, 12, 28),
    ("telecom", "small"): (20, 20, 0, 2, 18),
    ("telecom-workflow", "test"): (40, 40, 0, 12, 28),
    ("mock", "base"): (9, 8, 1, 2, 7),
    ("banking_knowledge", "base"): (97, 97, 0, 0, 97),
    ("doordash", "train"): (74, 74, 7, 7, 67),
    ("doordash", "test"): (40, 40, 3, 3, 37),
}
CURRENT = {
    ("airline", "train"): (30, 30, 16, 16, 14),
    ("airline", "test"): (20, 20, 7, 7, 13),
    ("airline", "base"): (50, 50, 23, 23, 27),
    ("retail", "train"): (74, 74, 7, 7, 67),
    ("retail", "test"): (40, 40, 4, 4, 36),
    ("mock", "base"): (10, 8, 1, 2, 8),
}


def counts(domain: Domain, split: str) -> tuple[int, ...]:
    summary = summarize([score_baselines(domain, task) for task in domain.tasks(split)])
    assert set(summary["broken"]) <= domain.without_solution
    return tuple(summary[key] for key in COUNTS)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "split"), INSTALLED)
def test_gold_actions_solve_the_installed_tasks_and_the_floors_are_known(
    domain: GetDomain, name: str, split: str
) -> None:
    assert counts(domain(name), split) == INSTALLED[name, split]


@pytest.mark.parametrize(("name", "split"), CURRENT)
def test_gold_actions_solve_the_current_tasks_and_the_floors_equal_tau2s(
    tau2_data: Path, name: str, split: str
) -> None:
    assert counts(load_domain(name, tau2_data), split) == CURRENT[name, split]


@pytest.mark.slow
def test_gold_actions_solve_all_telecom_tasks(domain: GetDomain) -> None:
    assert counts(domain("telecom"), "full") == (2285, 2285, 0, 32, 2253)


def test_do_nothing_policy_solves_nearly_half_of_airline(
    tau2_data: Path,
) -> None:
    airline = load_domain("airline", tau2_data)
    baselines = [score_baselines(airline, task) for task in airline.tasks("base")]
    assert sum(baseline.idle for baseline in baselines) == 23
    assert sum(baseline.is_informative for baseline in baselines) == 27


def test_tasks_that_need_a_judge_are_counted(tau2_data: Path) -> None:
    retail = load_domain("retail", tau2_data)
    baselines = [score_baselines(retail, task) for task in retail.tasks("base")]
    assert summarize(baselines)["needs_judge"] == 40
    assert {part for baseline in baselines for part in baseline.not_judged} == {
        RewardType.NL_ASSERTION
    }


@pytest.mark.parametrize("name", ["airline", "retail", "telecom", "doordash"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_generated_tasks_score_1_by_gold_and_0_idle_unless_refusals(
    domain: GetDomain, name: str, split: str
) -> None:
    env = domain(name)
    for task in env.generate(seed=5, count=60, split=split):
        baseline = score_baselines(env, task)
        assert baseline.gold == 1.0, task.id
        assert baseline.idle == float(task.is_refusal and not _must_communicate(task)), task.id


def _must_communicate(task: Task) -> bool:
    criteria = task.evaluation_criteria
    return criteria is not None and bool(criteria.communicate_info)


def test_generated_task_is_found_by_its_id(domain: GetDomain) -> None:
    airline = domain("airline")
    tasks = airline.generate(seed=3, count=5, difficulty=0.5)
    assert airline.has_task(tasks[4].id)
    assert airline.task(tasks[4].id) == tasks[4]
    assert not airline.has_task("airline-gen-train-3-0.5-x")


@pytest.mark.parametrize("name", ["airline", "retail", "telecom", "doordash"])
def test_playing_every_task_does_not_change_the_shared_database(
    domain: GetDomain, name: str
) -> None:
    env = domain(name)
    model = env.database.model  # type: ignore[attr-defined]
    before = to_json(model)
    for task in env.tasks("test"):
        score_baselines(env, task)
    assert to_json(model) == before


def floors(domain: Domain, tasks: Sequence[Task], *, solo: bool) -> list[tuple[float, ...]]:
    oracle = RewardOracle({domain.name: domain})
    scores = score_floors(domain, tasks, oracle, solo=solo)
    return [(one.idle, one.transfer, one.repeat_reads, one.spam_writes) for one in scores]


@pytest.mark.parametrize("solo", [True, False])
def test_doing_nothing_and_transferring_score_the_same_with_and_without_a_user(
    domain: GetDomain, *, solo: bool
) -> None:
    for name in ("airline", "retail", "telecom"):
        env = domain(name)
        tasks = env.tasks("test")[:12]
        baselines = [score_baselines(env, task) for task in tasks]
        expected = [(baseline.idle, baseline.transfer) for baseline in baselines]
        assert [found[:2] for found in floors(env, tasks, solo=solo)] == expected


def test_repeated_reads_score_as_doing_nothing_where_the_database_is_compared(
    domain: GetDomain,
) -> None:
    airline = domain("airline")
    for idle, _, repeat_reads, _ in floors(airline, airline.tasks("test"), solo=True):
        assert repeat_reads == idle


def test_spammed_writes_solve_tasks_whose_only_write_takes_an_id_of_the_ticket(
    domain: GetDomain,
) -> None:
    healthcare = domain("healthcare")
    tasks = healthcare.generate(seed=0, count=32, split="test", difficulty=0)
    found = floors(healthcare, tasks, solo=True)
    assert any(spam_writes == 1 for *_, spam_writes in found)
    assert not any(idle or transfer or reads for idle, transfer, reads, _ in found)


def test_a_task_is_solved_by_the_floors_if_one_of_them_solves_it() -> None:
    rewards = {"idle": 0.0, "transfer": 0.0, "repeat_reads": 0.0, "spam_writes": 0.0}
    assert not TaskFloors(task_id="a", **rewards).is_solved
    for name in rewards:
        assert TaskFloors(task_id="a", **{**rewards, name: 1.0}).is_solved
