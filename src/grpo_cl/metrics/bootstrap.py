"""Hierarchical bootstrap over seeds, tasks and trials. Derivation: docs/metrics.md.

The tasks are the same in every run, so each resample of tasks is used for all cells of all runs,
and the difficulty of a task cancels in every difference.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf, sqrt
from random import Random
from statistics import fmean, variance
from typing import NamedTuple

from grpo_cl.errors import ConfigError
from grpo_cl.metrics.continual import Scores
from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.metrics.statistics import (
    BOTH_COVERED,
    TASKS_COVERED,
    Interval,
    Sample,
    VarianceComponent,
    require_same_tasks,
    satterthwaite,
    seed_variance,
    t_interval,
)

RESAMPLES = 1000
Score = Callable[[Scores], float | None]
"""A function of an R-matrix's scores, such as ``backward_transfer``."""


class _CellRates(NamedTuple):
    domain: str
    rates: Sequence[float]
    """Pass rate of each task, in the same order for all cells of a domain."""
    trial_error: float
    """Standard error of the mean due to trials; tasks with a single trial are left out."""


_Table = Sequence[Sequence[_CellRates | None]]
_Mean = Callable[[_CellRates], float]


def bootstrap_interval(
    runs: Sequence[RMatrix],
    score: Score,
    *,
    rng: Random,
    baseline: Sequence[RMatrix] = (),
    resamples: int = RESAMPLES,
) -> Interval | None:
    """The confidence interval of a score's mean over ``runs``, minus that over ``baseline``.

    It generalises to new seeds and new tasks; with a single run in a group only to new tasks, as
    its ``covers`` states. None if the score is missing or a cell's mean is not its pass rate.
    """
    groups = [[run.scores() for run in runs], [run.scores() for run in baseline]]
    values = [[score(scores) for scores in group] for group in groups]
    known = [[value for value in group if value is not None] for group in values]
    if known != values or not runs:
        return None
    tasks = shared_tasks([*runs, *baseline])
    tables = [[_table(run, tasks) for run in group] for group in (runs, baseline)]
    seed_parts = [seed_variance(group) for group in known if len(group) > 1]
    task_part = _task_variance(tables, score, tasks, rng=rng, resamples=resamples)
    if task_part is None:
        return None
    seeds = min(len(group) for group in known if group)
    parts = [*seed_parts, task_part] if seeds > 1 else [task_part]
    overlap = _trial_variance(tables, score, rng=rng, resamples=resamples) if seeds > 1 else 0.0
    sample = Sample(
        seeds,
        sum(len(ids) for ids in tasks.values()),
        "hierarchical bootstrap" if seeds > 1 else "bootstrap over tasks",
        BOTH_COVERED if seeds > 1 else TASKS_COVERED,
    )
    return t_interval(_difference(known), _total_variance(parts, overlap), parts, sample)


def shared_tasks(matrices: Sequence[RMatrix]) -> dict[str, tuple[str, ...]]:
    """The task ids of each domain; every cell of a domain must have the same ones."""
    shared: dict[str, tuple[str, ...]] = {}
    for matrix in matrices:
        for row in matrix.rows:
            for domain, cell in row.cells.items():
                require_same_tasks(shared.setdefault(domain, tuple(sorted(cell.tasks))), cell.tasks)
    return shared


def _total_variance(parts: Sequence[VarianceComponent], overlap: float) -> float:
    """The sum of the components; the variance of trials is in both, so it is subtracted once."""
    *seeds, tasks = (part.variance for part in parts)
    return max(sum(seeds) + tasks - overlap, sum(seeds), tasks)


def _table(matrix: RMatrix, tasks: Mapping[str, Sequence[str]]) -> _Table:
    return [
        [_cell(matrix, after, domain, tasks) for domain in matrix.domains]
        for after in matrix.evaluated_stages
    ]


def _cell(
    matrix: RMatrix, stage: str, domain: str, tasks: Mapping[str, Sequence[str]]
) -> _CellRates | None:
    cell = matrix.cell(stage, domain)
    if cell is None or not cell.is_binary:
        return None
    counts = [cell.tasks[task] for task in tasks[domain]]
    noise = sum(c * (n - c) / (n * n * (n - 1)) for c, n in counts if n > 1)
    return _CellRates(domain, [c / n for c, n in counts], sqrt(noise) / len(counts))


def _task_variance(
    tables: Sequence[Sequence[_Table]],
    score: Score,
    tasks: Mapping[str, Sequence[str]],
    *,
    rng: Random,
    resamples: int,
) -> VarianceComponent | None:
    if too_few := sorted(domain for domain, ids in tasks.items() if len(ids) < 2):
        raise ConfigError(
            f"fewer than two test tasks in {too_few}; an interval over tasks needs two"
        )

    def resampled(domains: Iterable[str], count: int) -> float | None:
        """The variance of the score over resamples of the tasks of ``domains``."""
        sizes = {domain: len(tasks[domain]) for domain in domains}
        scores: list[float | None] = []
        for _ in range(count):
            # A resample of n - 1 tasks makes the variance unbiased (Rao and Wu 1988).
            indices = {name: rng.choices(range(size), k=size - 1) for name, size in sizes.items()}
            scores.append(_score(tables, score, partial(_mean_rate, indices)))
        known = [value for value in scores if value is not None]
        return variance(known) if len(known) == len(scores) else None

    total = resampled(tasks, resamples)
    by_domain = [
        (resampled([domain], resamples // len(tasks)), len(ids) - 1)
        for domain, ids in tasks.items()
    ]
    known = [VarianceComponent(v, degrees) for v, degrees in by_domain if v is not None]
    if total is None or len(known) < len(by_domain):
        return None
    # Degrees of freedom are weighted by variance: domains outside of the score contribute none.
    degrees = satterthwaite(sum(part.variance for part in known), known)
    return VarianceComponent(total, degrees or inf)


def _mean_rate(indices: Mapping[str, Sequence[int]], cell: _CellRates) -> float:
    """The mean pass rate over the resampled tasks, or over all of a domain without resample."""
    if cell.domain not in indices:
        return fmean(cell.rates)
    return fmean(cell.rates[index] for index in indices[cell.domain])


def _trial_variance(
    tables: Sequence[Sequence[_Table]], score: Score, *, rng: Random, resamples: int
) -> float:
    scores = [
        _score(tables, score, lambda cell: rng.gauss(fmean(cell.rates), cell.trial_error))
        for _ in range(resamples)
    ]
    known = [value for value in scores if value is not None]
    return variance(known) if len(known) == len(scores) else 0.0


def _score(tables: Sequence[Sequence[_Table]], score: Score, mean: _Mean) -> float | None:
    values = [
        [
            score([[None if cell is None else mean(cell) for cell in row] for row in table])
            for table in group
        ]
        for group in tables
    ]
    known = [[value for value in group if value is not None] for group in values]
    return _difference(known) if known == values else None


def _difference(groups: Sequence[Sequence[float]]) -> float:
    runs, baseline = groups
    return fmean(runs) - (fmean(baseline) if baseline else 0.0)
