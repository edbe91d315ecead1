"""Confidence intervals of the numbers on a page: cells of R-matrices and their changes."""

from collections.abc import Mapping, Sequence
from random import Random

from grpo_cl.errors import ConfigError
from grpo_cl.metrics.bootstrap import Score
from grpo_cl.metrics.comparisons import pooled_cell, score_interval
from grpo_cl.metrics.continual import Counts, pass_hat_k
from grpo_cl.metrics.rmatrix import Cell, RMatrix
from grpo_cl.metrics.statistics import (
    TASKS_COVERED,
    Interval,
    Sample,
    VarianceComponent,
    mean_over_tasks,
    seed_interval,
    t_interval,
    task_difference,
    task_interval,
    with_exact_ends,
)

MIN_EQUAL = 6
"""Equal changes that count as a change: six of the same sign have p = 0.031 in a sign test."""
_FROM_EPISODES = "upper bound, from the standard deviation over episodes"


def score_of(matrix: RMatrix, score: Score) -> Interval | None:
    """A score of one run with its interval over tasks; None if either is unknown."""
    try:
        return score_interval([matrix], score, rng=Random(score.__name__))
    except ConfigError:  # fewer than two tasks in a domain, or other tasks in another row
        return None


def cell_interval(cell: Cell) -> Interval | None:
    """The mean reward of a cell over new tasks and trials; None with fewer than two tasks."""
    if len(cell.tasks) < 2:
        return None
    return task_interval(cell.tasks) if cell.is_binary else _from_episodes(cell.mean, [cell])


def mean_interval(cells: Sequence[Cell]) -> Interval | None:
    """The mean reward of the same cell in runs that differ in their seeds; of one run, its own."""
    if len(cells) == 1:
        return cell_interval(cells[0])
    if not cells:
        return None
    found = seed_interval([cell.mean for cell in cells], tasks=len(cells[0].tasks))
    if not all(0 <= cell.mean <= 1 for cell in cells):
        return found
    return found.model_copy(update={"low": max(0.0, found.low), "high": min(1.0, found.high)})


def change_interval(before: Sequence[Cell], after: Sequence[Cell]) -> Interval | None:
    """The change of the mean reward from one cell to another, one pair for each run.

    Over seeds for several runs. For one run paired over tasks, so that their difficulty cancels;
    likewise for several runs with equal changes, whose variance between seeds is zero.
    """
    if len(before) == 1:
        return _change_over_tasks(before[0], after[0])
    changes = [then.mean - first.mean for first, then in zip(before, after, strict=True)]
    over_seeds = seed_interval(changes, tasks=len(before[0].tasks)) if changes else None
    if over_seeds is None or over_seeds.degrees is not None or over_seeds.estimate == 0:
        return over_seeds
    return _change_over_tasks(pooled_cell(before), pooled_cell(after)) or over_seeds


def component_interval(cell: Cell, name: str) -> Interval | None:
    """The mean of a reward component over new tasks and trials.

    None with fewer than two tasks that are judged by it, or if their means are not in the file.
    """
    values = _component_tasks(cell, name)
    if len(values) < 2:
        return None
    found = mean_over_tasks(list(values.values()), "t over tasks")
    if not all(0 <= value <= 1 for value in values.values()):
        return found
    trials = sum(cell.tasks[task][1] for task in values)
    return with_exact_ends(found, tasks=len(values), trials=trials)


def component_change(before: Cell, after: Cell, name: str) -> Interval | None:
    """The change of a reward component's mean, paired over tasks.

    None with fewer than two tasks, or if not the same tasks are judged by it in both cells.
    """
    first, then = _component_tasks(before, name), _component_tasks(after, name)
    if set(first) != set(then) or len(first) < 2:
        return None
    return mean_over_tasks([then[task] - first[task] for task in first], "paired t over tasks")


def is_beyond_noise(change: Interval) -> bool:
    """Whether the interval of a change excludes zero.

    Changes that are all equal have no variance; there must be enough of them for a sign test.
    """
    if change.degrees is None:
        units = change.seeds if change.seeds > 1 else change.tasks
        return change.estimate != 0 and units >= MIN_EQUAL
    return change.low > 0 or change.high < 0


def pass_hat_interval(tasks: Counts, k: int) -> Interval | None:
    """pass^k with its exact interval over tasks; None if a task has fewer than k trials."""
    values = [pass_hat_k({task: counts}, k) for task, counts in tasks.items()]
    known = [value for value in values if value is not None]
    if len(known) < max(2, len(values)):
        return None
    groups = sum(trials // k for _, trials in tasks.values())
    found = mean_over_tasks(known, "t over tasks")
    return with_exact_ends(found, tasks=len(known), trials=groups)


def _change_over_tasks(before: Cell, after: Cell) -> Interval | None:
    if set(before.tasks) != set(after.tasks) or len(before.tasks) < 2:
        return None
    if before.is_binary and after.is_binary:
        return task_difference(before.tasks, after.tasks)
    return _from_episodes(after.mean - before.mean, [before, after])


def _component_tasks(cell: Cell, name: str) -> Mapping[str, float]:
    return (cell.component_tasks or {}).get(name, {})


def _from_episodes(estimate: float, cells: Sequence[Cell]) -> Interval | None:
    """The interval of rewards between 0 and 1, whose counts of successes do not determine it.

    The variance between the means of tasks is at most that between episodes.
    """
    parts: list[VarianceComponent] = []
    for cell in cells:
        if cell.reward_std is None:
            return None
        tasks = len(cell.tasks)
        parts.append(VarianceComponent(cell.reward_std**2 / (tasks - 1), tasks - 1))
    sample = Sample(1, len(cells[0].tasks), _FROM_EPISODES, TASKS_COVERED)
    return t_interval(estimate, sum(part.variance for part in parts), parts, sample)
