"""The scores of an R-matrix as rows for tables."""

from collections.abc import Iterator
from typing import NamedTuple

from grpo_cl.metrics.bootstrap import Score
from grpo_cl.metrics.continual import (
    Scores,
    average_performance,
    backward_transfer,
    forgetting,
    forward_transfer,
    learning_accuracy,
    mean_or_none,
    pass_hat_ks,
)
from grpo_cl.metrics.floors import FLOORS, DomainFloors, domain_floors, without_floor_tasks
from grpo_cl.metrics.rmatrix import BASE, TOOL_ARGUMENTS, TOOL_NAME, Cell, DomainFacts, RMatrix
from grpo_cl.metrics.statistics import Interval, task_interval
from grpo_cl.report.intervals import (
    component_change,
    component_interval,
    pass_hat_interval,
    score_of,
)

COMPONENTS = {
    TOOL_NAME: "tool choice",
    TOOL_ARGUMENTS: "tool arguments",
    "DB": "database",
    "ENV_ASSERTION": "environment assertions",
    "ACTION": "all gold actions",
    "COMMUNICATE": "communication",
    "NL_ASSERTION": "judged assertions",
}
"""Titles of the reward components."""
_CARDS: tuple[tuple[Score, str, str, str], ...] = (
    (average_performance, "Average performance", "all domains, at the end", ".3f"),
    (learning_accuracy, "Learning accuracy", "each domain, just learned", ".3f"),
    (backward_transfer, "Backward transfer", "earlier domains, since learned", "+.3f"),
    (forgetting, "Forgetting", "earlier domains, from their best", "+.3f"),
    (forward_transfer, "Forward transfer", "later domains, before learning", "+.3f"),
)


class ScoreCard(NamedTuple):
    """One headline score."""

    title: str
    remark: str
    value: float | None
    form: str
    """Its format specification."""
    interval: Interval | None
    without_floor_tasks: float | None
    """The score on the tasks that no policy without skill solves; None if they solve no task."""


class PassHatTable(NamedTuple):
    """pass^k of each domain at the end of a run; empty with one trial per task."""

    trials: int
    heads: list[str]
    rows: list[tuple[str, list[Interval | None]]]


class ComponentRow(NamedTuple):
    """Means of one reward component in one domain, with their intervals over tasks."""

    domain: str
    label: str
    means: list[tuple[float | None, Interval | None]]
    """Untrained, just learned, at the end."""
    change: tuple[float | None, Interval | None]
    """Since the domain was learned; None if no later stage was evaluated."""


class FloorRow(NamedTuple):
    """The scores of policies without skill in a domain."""

    floors: DomainFloors
    rates: list[tuple[float | None, Interval | None]]
    """The run's pass rates without the floor tasks: untrained, just learned, at the end."""

    @property
    def has_reward(self) -> bool:
        """Whether such a policy gets a reward."""
        return self.floors.num_floor_tasks > 0 or any(self.floors.floors.values())


class ChangedTask(NamedTuple):
    """Successes and trials of a task when its domain was learned and at the end."""

    domain: str
    task: str
    before: tuple[int, int]
    after: tuple[int, int]

    @property
    def change(self) -> float:
        """The change of its success rate."""
        return self.after[0] / self.after[1] - self.before[0] / self.before[1]

    @property
    def is_lost(self) -> bool:
        """Whether its success rate fell."""
        return self.change < 0


def score_cards(matrix: RMatrix) -> list[ScoreCard]:
    """The headline scores with their intervals over tasks."""
    has_floor_tasks = any(facts.floor_tasks for facts in matrix.facts.values())
    scores = matrix.scores()
    rest = without_floor_tasks(matrix) if has_floor_tasks else None
    return [
        ScoreCard(
            title,
            remark,
            score(scores),
            form,
            score_of(matrix, score) if score(scores) is not None else None,
            score(rest.scores()) if rest else None,
        )
        for score, title, remark, form in _CARDS
    ]


def untrained_average(scores: Scores) -> float | None:
    """The untrained policy's mean score on the domains learned so far."""
    learned = len(scores) - 1
    return mean_or_none(scores[0][:learned]) if learned > 0 else None


def baseline_rows(matrix: RMatrix) -> list[tuple[str, list[float | None]]]:
    """The best score of policies without skill on each domain; of each, where some are unknown."""
    facts = [matrix.facts.get(domain) or DomainFacts() for domain in matrix.domains]
    if all(fact.floor_tasks is not None for fact in facts):
        known = [[getattr(fact, name) for name in FLOORS] for fact in facts]
        return [("best floor", [max((v for v in k if v is not None), default=None) for k in known])]
    rows = [
        (f"floor: {title}", [getattr(fact, name) for fact in facts])
        for name, title in FLOORS.items()
    ]
    return [row for row in rows if any(value is not None for value in row[1])]


def pass_hat_rows(matrix: RMatrix) -> PassHatTable:
    """pass^k of each domain in the last row of the matrix."""
    last = matrix.rows[-1].cells if matrix.rows else {}
    trials = min((n for cell in last.values() for _, n in cell.tasks.values()), default=0)
    if trials < 2:
        return PassHatTable(trials, [], [])
    ks = pass_hat_ks(trials)
    rows = [
        (domain, [pass_hat_interval(last[domain].tasks, k) for k in ks])
        for domain in matrix.domains
        if domain in last
    ]
    return PassHatTable(trials, [f"pass^{k}" for k in ks], rows)


def component_rows(matrix: RMatrix) -> list[ComponentRow]:
    """Every reward component of every domain; in brackets if no task's reward contains it."""
    return [row for domain in matrix.domains for row in _component_rows(matrix, domain)]


def floor_rows(matrix: RMatrix) -> list[FloorRow]:
    """The floors of every domain, and its pass rates on the tasks that no floor policy solves."""
    rows: list[FloorRow] = []
    for floors in domain_floors(matrix):
        domain = floors.domain
        cells = (matrix.cell(BASE, domain), matrix.cell(domain, domain), _last_cell(matrix, domain))
        excluded = matrix.facts[domain].floor_tasks or ()
        counts = [
            {task: tally for task, tally in cell.tasks.items() if task not in excluded}
            if cell
            else {}
            for cell in cells
        ]
        intervals = [task_interval(tasks) if len(tasks) > 1 else None for tasks in counts]
        values = (floors.untrained, floors.learned, floors.last)
        rows.append(FloorRow(floors, list(zip(values, intervals, strict=True))))
    return rows


def changed_tasks(matrix: RMatrix) -> list[ChangedTask]:
    """The tasks whose success rate changed since their domain was learned, largest loss first."""
    tasks = [row for domain in matrix.domains for row in _changed_tasks(matrix, domain)]
    return sorted(tasks, key=lambda row: row.change)


def _component_rows(matrix: RMatrix, domain: str) -> Iterator[ComponentRow]:
    cells = (matrix.cell(BASE, domain), matrix.cell(domain, domain), _last_cell(matrix, domain))
    basis = matrix.facts[domain].basis if domain in matrix.facts else None
    present = {name for cell in cells if cell for name in cell.components}
    for name in (*COMPONENTS, *sorted(present - set(COMPONENTS))):
        if name in present:
            label = COMPONENTS.get(name, name)
            is_extra = basis is not None and name.isupper() and name not in basis
            means = [
                (cell.components.get(name), component_interval(cell, name))
                if cell
                else (None, None)
                for cell in cells
            ]
            change = _component_change(cells[1], cells[2], name)
            yield ComponentRow(domain, f"[{label}]" if is_extra else label, means, change)


def _component_change(
    learned: Cell | None, last: Cell | None, name: str
) -> tuple[float | None, Interval | None]:
    if learned is None or last is None or learned is last:
        return None, None
    before, after = learned.components.get(name), last.components.get(name)
    change = None if before is None or after is None else after - before
    return change, component_change(learned, last, name)


def _changed_tasks(matrix: RMatrix, domain: str) -> Iterator[ChangedTask]:
    learned, last = matrix.cell(domain, domain), _last_cell(matrix, domain)
    if learned is None or last is None:
        return
    for task, before in learned.tasks.items():
        after = last.tasks.get(task)
        if after is not None and (row := ChangedTask(domain, task, before, after)).change:
            yield row


def _last_cell(matrix: RMatrix, domain: str) -> Cell | None:
    return matrix.cell(matrix.rows[-1].after, domain) if matrix.rows else None
