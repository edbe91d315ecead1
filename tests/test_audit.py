"""The contract over the tables: what every τ² task is worth to three fixed policies."""

from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_cl.audit import audit_task, summarize
from grpo_cl.domains import Domain, load_domain
from grpo_cl.domains.overlay import to_json
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
    summary = summarize([audit_task(domain, task) for task in domain.tasks(split)])
    assert set(summary["broken"]) <= domain.without_solution
    return tuple(summary[key] for key in COUNTS)


@pytest.mark.parametrize(("name", "split"), INSTALLED)
def test_installed_tasks_are_solved_by_their_gold_and_have_the_known_floors(
    domain: GetDomain, name: str, split: str
) -> None:
    assert counts(domain(name), split) == INSTALLED[name, split]


@pytest.mark.parametrize(("name", "split"), CURRENT)
def test_current_tasks_are_solved_by_their_gold_and_have_the_references_floors(
    tau2_data: Path, name: str, split: str
) -> None:
    assert counts(load_domain(name, tau2_data), split) == CURRENT[name, split]


@pytest.mark.slow
def test_all_telecom_tasks_are_solved_by_their_gold(domain: GetDomain) -> None:
    assert counts(domain("telecom"), "full") == (2285, 2285, 0, 32, 2253)


def test_nearly_half_of_airline_is_solved_by_doing_nothing_and_only_the_rest_is_telling(
    tau2_data: Path,
) -> None:
    airline = load_domain("airline", tau2_data)
    audits = [audit_task(airline, task) for task in airline.tasks("base")]
    assert sum(audit.idle for audit in audits) == 23
    assert sum(audit.is_telling for audit in audits) == 27


def test_tasks_that_need_a_judge_are_counted(tau2_data: Path) -> None:
    retail = load_domain("retail", tau2_data)
    audits = [audit_task(retail, task) for task in retail.tasks("base")]
    assert summarize(audits)["needs_judge"] == 40
    assert {part for audit in audits for part in audit.not_judged} == {RewardType.NL_ASSERTION}


@pytest.mark.parametrize("name", ["airline", "retail", "telecom", "doordash"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_generated_tasks_score_one_by_their_gold_and_zero_untouched_unless_refusals(
    domain: GetDomain, name: str, split: str
) -> None:
    here = domain(name)
    for task in here.generate(seed=5, count=60, split=split):
        audit = audit_task(here, task)
        assert audit.gold == 1.0, task.id
        assert audit.idle == float(task.is_refusal and not _must_tell(task)), task.id


def _must_tell(task: Task) -> bool:
    criteria = task.evaluation_criteria
    return criteria is not None and bool(criteria.communicate_info)


def test_a_generated_task_is_found_again_by_its_id(domain: GetDomain) -> None:
    airline = domain("airline")
    tasks = airline.generate(seed=3, count=5, difficulty=0.5)
    assert airline.has_task(tasks[4].id)
    assert airline.task(tasks[4].id) == tasks[4]
    assert not airline.has_task("airline-gen-train-3-0.5-x")


@pytest.mark.parametrize("name", ["airline", "retail", "telecom", "doordash"])
def test_playing_every_task_leaves_the_shared_database_as_it_was(
    domain: GetDomain, name: str
) -> None:
    here = domain(name)
    model = here.database.model  # type: ignore[attr-defined]
    before = to_json(model)
    for task in here.tasks("test"):
        audit_task(here, task)
    assert to_json(model) == before
