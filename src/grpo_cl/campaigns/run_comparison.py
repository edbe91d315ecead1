"""Differences of finished runs from the first of them, paired over tasks: ``grpo-cl compare``."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from grpo_cl.errors import ConfigError
from grpo_cl.metrics import continual
from grpo_cl.metrics.bootstrap import Score
from grpo_cl.metrics.comparisons import Comparison, compare_policies, score_interval
from grpo_cl.metrics.rmatrix import BASE, Cell, RMatrix
from grpo_cl.metrics.statistics import Interval, require_same_tasks, task_difference
from grpo_cl.report.run import Run, read_run
from grpo_cl.runs.settings import LOCATION
from grpo_cl.types import Record

SCORES: dict[str, Score] = {
    "average_performance": continual.average_performance,
    "backward_transfer": continual.backward_transfer,
    "forgetting": continual.forgetting,
    "forward_transfer": continual.forward_transfer,
    "learning_accuracy": continual.learning_accuracy,
}
"""The compared scores, by their names in docs/metrics.md."""

END = "end"
"""The last row of an R-matrix, where rows have different names in runs of another order."""


class CellDifference(Record):
    """An evaluation of a domain in a run, minus the same evaluation of the baseline."""

    after: str
    """The row of the R-matrix, or ``end`` if the runs have different task orders."""
    domain: str
    difference: float
    interval: Interval | None
    """Paired over tasks; None with a single task, or with rewards other than 0 and 1."""


class TaskDifference(Record):
    """A task at the end of training that one of two runs solves more often."""

    domain: str
    task: str
    run: tuple[int, int]
    """Successes and trials."""
    baseline: tuple[int, int]

    @property
    def is_won(self) -> bool:
        """Whether the run solves it more often than the baseline."""
        return _rate(self.run) > _rate(self.baseline)


class ComparedRun(Record):
    """One run and its differences from the baseline."""

    name: str
    settings: dict[str, tuple[Any, Any]]
    """Settings that differ: the value of the baseline, then that of the run."""
    scores: dict[str, float | None]
    intervals: dict[str, Interval | None]
    """Of the scores; None where rewards are not 0 or 1."""
    differences: dict[str, Comparison | None]
    """From the baseline, by score; p-values are corrected for the number of runs (Holm)."""
    cells: tuple[CellDifference, ...]
    tasks: tuple[TaskDifference, ...]


class RunComparison(Record):
    """A baseline and the runs that are compared with it."""

    baseline: str
    scores: dict[str, float | None]
    """Of the baseline."""
    intervals: dict[str, Interval | None]
    """Of the baseline's scores."""
    runs: tuple[ComparedRun, ...]


def compare_runs(roots: Sequence[Path]) -> RunComparison:
    """Compare finished runs with the first one; runs whose tasks differ are refused."""
    runs = _read(roots)
    (baseline, first), *others = runs.items()
    for name, run in others:
        _require_comparable((baseline, first), (name, run))
    matrices = {name: run.matrix for name, run in runs.items()}
    differences = {
        score: compare_policies(matrices, baseline, function, rng=Random(0))
        for score, function in SCORES.items()
    }
    return RunComparison(
        baseline=baseline,
        scores=_scores(first.matrix),
        intervals=_intervals(first.matrix),
        runs=tuple(
            ComparedRun(
                name=name,
                settings=dict(_setting_differences(first.config, run.config)),
                scores=_scores(run.matrix),
                intervals=_intervals(run.matrix),
                differences={score: found[name] for score, found in differences.items()},
                cells=tuple(_cell_differences(run.matrix, first.matrix)),
                tasks=tuple(_task_differences(run.matrix, first.matrix)),
            )
            for name, run in others
        ),
    )


def _read(roots: Sequence[Path]) -> dict[str, Run]:
    """The runs by name: that of the directory, or its path where two have the same."""
    if len(roots) < 2:
        raise ConfigError("a comparison needs two runs; name the baseline first, then the others")
    paths = [root.resolve() for root in roots]
    if repeated := next((path for path in paths if paths.count(path) > 1), None):
        raise ConfigError(f"{str(repeated)!r} is given twice; name each run once")
    names = [path.name for path in paths]
    found = {
        path.name if names.count(path.name) == 1 else str(path): read_run(path) for path in paths
    }
    for name, run in found.items():
        stages, planned = len(run.matrix.rows) - 1, len(run.matrix.domains)
        if stages < planned:
            raise ConfigError(
                f"the run {name!r} has evaluations after {max(stages, 0)} of {planned} stages; "
                "compare finished runs, or continue it with grpo-cl train --resume_from"
            )
    return found


def _require_comparable(baseline: tuple[str, Run], other: tuple[str, Run]) -> None:
    """Refuse a run that was evaluated on other tasks than the baseline."""
    (first_name, first), (name, run) = baseline, other
    if set(first.matrix.domains) != set(run.matrix.domains):
        raise ConfigError(
            f"{first_name!r} has the domains {', '.join(first.matrix.domains)} and {name!r} has "
            f"{', '.join(run.matrix.domains)}; compare runs of the same domains"
        )
    for domain in first.matrix.domains:
        releases = [each.environment.get("task_releases", {}).get(domain) for each in (first, run)]
        if None not in releases and releases[0] != releases[1]:
            raise ConfigError(
                f"{first_name!r} has the {domain} tasks of {releases[0]!r} and {name!r} those of "
                f"{releases[1]!r}; scores of different releases are not comparable, so evaluate "
                "both with the same one"
            )
        cells = [each.matrix.cell(BASE, domain) for each in (first, run)]
        try:
            require_same_tasks(*(cell.tasks if cell else () for cell in cells))
        except ConfigError as error:
            raise ConfigError(f"{first_name!r} and {name!r}, {domain}: {error}") from None


def _scores(matrix: RMatrix) -> dict[str, float | None]:
    return {name: score(matrix.scores()) for name, score in SCORES.items()}


def _intervals(matrix: RMatrix) -> dict[str, Interval | None]:
    rng = Random(0)
    return {name: score_interval([matrix], score, rng=rng) for name, score in SCORES.items()}


def _setting_differences(
    baseline: Mapping[str, Any], run: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    left, right = dict(_flatten(baseline)), dict(_flatten(run))
    for name in dict.fromkeys([*left, *right]):
        if name not in LOCATION and left.get(name) != right.get(name):
            yield name, (left.get(name), right.get(name))


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _rows(run: RMatrix, baseline: RMatrix) -> list[tuple[str, str, str]]:
    """The rows that have the same meaning in both: a name, and the stage of each."""
    if run.domains == baseline.domains:
        return [(after, after, after) for after in run.stages]
    return [(BASE, BASE, BASE), (END, run.domains[-1], baseline.domains[-1])]


def _cell_differences(run: RMatrix, baseline: RMatrix) -> Iterator[CellDifference]:
    for name, after, baseline_after in _rows(run, baseline):
        for domain in baseline.domains:
            cell, other = run.cell(after, domain), baseline.cell(baseline_after, domain)
            if cell is not None and other is not None:
                yield CellDifference(
                    after=name,
                    domain=domain,
                    difference=cell.mean - other.mean,
                    interval=_paired_interval(cell, other),
                )


def _paired_interval(cell: Cell, other: Cell) -> Interval | None:
    """The t interval of the mean difference over tasks, in which their difficulty cancels."""
    if len(cell.tasks) < 2 or not (cell.is_binary and other.is_binary):
        return None
    return task_difference(other.tasks, cell.tasks)


def _task_differences(run: RMatrix, baseline: RMatrix) -> Iterator[TaskDifference]:
    """The tasks at the end of training whose success differs."""
    for domain in baseline.domains:
        cell = run.cell(run.domains[-1], domain)
        other = baseline.cell(baseline.domains[-1], domain)
        if cell is None or other is None:
            continue
        for task in sorted(cell.tasks):
            counts, others = cell.tasks[task], other.tasks[task]
            if _rate(counts) != _rate(others):
                yield TaskDifference(domain=domain, task=task, run=counts, baseline=others)


def _rate(counts: tuple[int, int]) -> float:
    successes, trials = counts
    return successes / trials
