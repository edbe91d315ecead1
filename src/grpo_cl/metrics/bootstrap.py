"""A bootstrap over the levels of an experiment: seeds, tasks, plays. Reasons: docs/metrics.md.

The tasks are the same in every run, so one draw of tasks serves all cells of all runs, and what
tasks share cancels in every difference.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf, sqrt
from random import Random
from statistics import fmean, variance
from typing import NamedTuple

from grpo_cl.errors import ConfigError
from grpo_cl.metrics.continual import Scores
from grpo_cl.metrics.rmatrix import BASE, RMatrix
from grpo_cl.metrics.statistics import (
    BOTH_COVERED,
    TASKS_COVERED,
    Interval,
    Part,
    Sample,
    require_same_tasks,
    satterthwaite,
    seed_part,
    t_interval,
)

DRAWS = 1000
Score = Callable[[Scores], float | None]
"""A number from a table of scores, say ``backward_transfer``."""


class _Cell(NamedTuple):
    domain: str
    rates: Sequence[float]
    """Pass rate of each task, in one order for all cells of a domain."""
    play_error: float
    """Standard error of the mean from the plays alone; a task played once adds nothing to it."""


_Table = Sequence[Sequence[_Cell | None]]
_Mean = Callable[[_Cell], float]


def bootstrap_interval(
    runs: Sequence[RMatrix],
    score: Score,
    *,
    rng: Random,
    baseline: Sequence[RMatrix] = (),
    draws: int = DRAWS,
) -> Interval | None:
    """A score's mean over ``runs``, less that over ``baseline``, for seeds and tasks like these.

    None where the score is missing, or is no share of successes. A run gives one matrix; with a
    single run in a group the interval has no part for seeds, and says so.
    """
    groups = [[run.scores() for run in runs], [run.scores() for run in baseline]]
    values = [[score(scores) for scores in group] for group in groups]
    known = [[value for value in group if value is not None] for group in values]
    if known != values or not runs:
        return None
    tasks = shared_tasks([*runs, *baseline])
    tables = [[_table(run, tasks) for run in group] for group in (runs, baseline)]
    seed_parts = [seed_part(group) for group in known if len(group) > 1]
    task_part = _task_part(tables, score, tasks, rng=rng, draws=draws)
    if task_part is None:
        return None
    seeds = min(len(group) for group in known if group)
    parts = [*seed_parts, task_part] if seeds > 1 else [task_part]
    overlap = _play_variance(tables, score, rng=rng, draws=draws) if seeds > 1 else 0.0
    sample = Sample(
        seeds,
        sum(len(ids) for ids in tasks.values()),
        "hierarchical bootstrap" if seeds > 1 else "bootstrap over tasks",
        BOTH_COVERED if seeds > 1 else TASKS_COVERED,
    )
    return t_interval(_contrast(known), _total(parts, overlap), parts, sample)


def shared_tasks(matrices: Sequence[RMatrix]) -> dict[str, tuple[str, ...]]:
    """The task ids of each domain, which every cell of it must have been measured on."""
    found: dict[str, tuple[str, ...]] = {}
    for matrix in matrices:
        for row in matrix.rows:
            for domain, cell in row.cells.items():
                require_same_tasks(found.setdefault(domain, tuple(sorted(cell.tasks))), cell.tasks)
    return found


def _total(parts: Sequence[Part], overlap: float) -> float:
    """Seeds and tasks each carry the noise of the plays once; together they carry it once too."""
    *seeds, tasks = (part.variance for part in parts)
    return max(sum(seeds) + tasks - overlap, sum(seeds), tasks)


def _table(matrix: RMatrix, tasks: Mapping[str, Sequence[str]]) -> _Table:
    stages = [BASE, *matrix.domains][: len(matrix.scores())]
    return [[_cell(matrix, stage, domain, tasks) for domain in matrix.domains] for stage in stages]


def _cell(
    matrix: RMatrix, stage: str, domain: str, tasks: Mapping[str, Sequence[str]]
) -> _Cell | None:
    cell = matrix.cell(stage, domain)
    if cell is None or not cell.is_counted:
        return None
    counts = [cell.tasks[task] for task in tasks[domain]]
    noise = sum(c * (n - c) / (n * n * (n - 1)) for c, n in counts if n > 1)
    return _Cell(domain, [c / n for c, n in counts], sqrt(noise) / len(counts))


def _task_part(
    tables: Sequence[Sequence[_Table]],
    score: Score,
    tasks: Mapping[str, Sequence[str]],
    *,
    rng: Random,
    draws: int,
) -> Part | None:
    if few := sorted(domain for domain, ids in tasks.items() if len(ids) < 2):
        raise ConfigError(f"fewer than two test tasks in {few}; an interval over tasks needs two")

    def drawn(domains: Iterable[str], count: int) -> float | None:
        """The variance of the score when the tasks of ``domains`` are drawn by chance."""
        sizes = {domain: len(tasks[domain]) for domain in domains}
        found: list[float | None] = []
        for _ in range(count):
            # One fewer than there are makes the variance unbiased (Rao and Wu 1988).
            places = {name: rng.choices(range(size), k=size - 1) for name, size in sizes.items()}
            found.append(_scored(tables, score, partial(_mean_of, places)))
        known = [value for value in found if value is not None]
        return variance(known) if len(known) == len(found) else None

    total = drawn(tasks, draws)
    each = [(drawn([domain], draws // len(tasks)), len(ids) - 1) for domain, ids in tasks.items()]
    known = [Part(found, degrees) for found, degrees in each if found is not None]
    if total is None or len(known) < len(each):
        return None
    # A domain counts by what it adds: one that the score does not look at says nothing of it.
    return Part(total, satterthwaite(sum(part.variance for part in known), known) or inf)


def _mean_of(places: Mapping[str, Sequence[int]], cell: _Cell) -> float:
    """Of the drawn tasks, or of all in a domain where none were drawn."""
    if cell.domain not in places:
        return fmean(cell.rates)
    return fmean(cell.rates[place] for place in places[cell.domain])


def _play_variance(
    tables: Sequence[Sequence[_Table]], score: Score, *, rng: Random, draws: int
) -> float:
    found = [
        _scored(tables, score, lambda cell: rng.gauss(fmean(cell.rates), cell.play_error))
        for _ in range(draws)
    ]
    known = [value for value in found if value is not None]
    return variance(known) if len(known) == len(found) else 0.0


def _scored(tables: Sequence[Sequence[_Table]], score: Score, mean: _Mean) -> float | None:
    values = [
        [
            score([[None if cell is None else mean(cell) for cell in row] for row in table])
            for table in group
        ]
        for group in tables
    ]
    known = [[value for value in group if value is not None] for group in values]
    return _contrast(known) if known == values else None


def _contrast(groups: Sequence[Sequence[float]]) -> float:
    runs, baseline = groups
    return fmean(runs) - (fmean(baseline) if baseline else 0.0)
