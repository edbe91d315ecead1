"""Scores without the tasks that policies without skill solve, worked out by hand."""

from grpo_cl.metrics.continual import average_performance
from grpo_cl.metrics.diagnostics import remarks
from grpo_cl.metrics.floors import (
    FloorGain,
    domain_floors,
    floor_numbers,
    floor_remarks,
    without_floor_tasks,
)
from grpo_cl.metrics.rmatrix import BASE, Cell, DomainFacts, RMatrix, Row

FACTS = DomainFacts(
    idle=0.5, transfer=0.25, repeat_reads=0.5, spam_writes=0.0, floor_tasks=("a", "b")
)


def cell(**successes: int) -> Cell:
    """Two trials of each task."""
    tasks = {name: (count, 2) for name, count in successes.items()}
    return Cell(mean=sum(successes.values()) / (2 * len(successes)), tasks=tasks)


def matrix(base: Cell, learned: Cell, facts: DomainFacts = FACTS) -> RMatrix:
    rows = (
        Row(after=BASE, cells={"airline": base}),
        Row(after="airline", cells={"airline": learned}),
    )
    return RMatrix(domains=("airline",), rows=rows, facts={"airline": facts})


def test_the_score_without_floor_tasks_is_the_pass_rate_of_the_other_tasks() -> None:
    (row,) = domain_floors(matrix(cell(a=0, b=0, c=1, d=0), cell(a=2, b=2, c=1, d=2)))
    assert (row.num_tasks, row.num_floor_tasks) == (4, 2)
    assert row.floors == {"idle": 0.5, "transfer": 0.25, "repeat_reads": 0.5, "spam_writes": 0.0}
    assert (row.untrained, row.learned, row.last) == (1 / 4, 3 / 4, 3 / 4)
    assert row.gains == (FloorGain("airline", 7 / 8 - 1 / 8, 1 / 2),)


def test_a_gain_on_floor_tasks_only_is_a_remark_of_the_report() -> None:
    only = matrix(cell(a=0, b=1, c=1, d=0), cell(a=2, b=2, c=1, d=0))
    assert floor_remarks(only) == remarks(only, {})
    assert floor_remarks(only) == [
        "airline after airline: the gain of +0.375 since the untrained policy comes only from the "
        "2 of 4 tasks that a policy without skill solves; on the others the change is +0.000."
    ]


def test_a_gain_on_other_tasks_and_a_loss_are_no_remarks() -> None:
    before = cell(a=1, b=1, c=1, d=0)
    assert not floor_remarks(matrix(before, cell(a=2, b=1, c=2, d=0)))
    assert not floor_remarks(matrix(before, cell(a=0, b=1, c=1, d=0)))


def test_a_gain_where_floor_policies_solve_every_task_is_a_remark() -> None:
    facts = FACTS.model_copy(update={"floor_tasks": ("a", "b")})
    (sentence,) = floor_remarks(matrix(cell(a=0, b=0), cell(a=1, b=0), facts))
    assert "on the others the change is unknown" in sentence


def test_scores_without_floor_tasks_are_those_of_the_remaining_matrix() -> None:
    rest = without_floor_tasks(matrix(cell(a=0, b=0, c=1, d=0), cell(a=2, b=2, c=1, d=0)))
    assert rest is not None
    assert average_performance(rest.scores()) == 1 / 4
    learned = rest.cell("airline", "airline")
    assert learned is not None
    assert learned.tasks == {"c": (1, 2), "d": (0, 2)}


def test_a_domain_without_floor_tasks_keeps_its_mean_reward() -> None:
    partial = Cell(mean=0.75, tasks={"a": (1, 2), "b": (0, 2)})
    rest = without_floor_tasks(
        matrix(partial, partial, FACTS.model_copy(update={"floor_tasks": ()}))
    )
    assert rest is not None
    assert average_performance(rest.scores()) == 0.75
    (row,) = domain_floors(matrix(partial, partial, FACTS.model_copy(update={"floor_tasks": ()})))
    assert row.last == 1 / 4  # a pass rate


def test_a_matrix_without_floors_has_no_score_without_floor_tasks() -> None:
    unknown = matrix(cell(a=1), cell(a=1), DomainFacts(idle=0.5))
    assert without_floor_tasks(unknown) is None
    assert domain_floors(unknown) == []
    assert floor_remarks(unknown) == []


def test_an_evaluation_has_its_floors_beside_it() -> None:
    numbers = floor_numbers(cell(a=2, b=2, c=1, d=0), FACTS)
    assert numbers == {
        "floor_idle": 0.5,
        "floor_transfer": 0.25,
        "floor_repeat_reads": 0.5,
        "floor_spam_writes": 0.0,
        "pass_rate_without_floor_tasks": 1 / 4,
    }
