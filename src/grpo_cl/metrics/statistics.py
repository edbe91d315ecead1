"""Intervals and tests that say what they were counted from. Reasons: docs/metrics.md."""

from collections.abc import Collection, Mapping, Sequence
from math import sqrt
from statistics import fmean, variance
from typing import NamedTuple

from grpo_cl.errors import ConfigError
from grpo_cl.metrics.continual import Counts
from grpo_cl.metrics.distributions import t_cdf, t_quantile
from grpo_cl.types import Record

CONFIDENCE = 0.95
SEEDS_COVERED = "training seeds and plays, on these tasks"
TASKS_COVERED = "evaluation noise only (tasks and plays of one run)"
BOTH_COVERED = "training seeds, tasks and plays"


class Interval(Record):
    """An estimate with its 95 % interval and what the interval stands for."""

    estimate: float
    low: float
    high: float
    standard_error: float
    degrees: float | None
    """Degrees of freedom of the t distribution; None where no spread was seen."""
    seeds: int
    """Training runs; of two groups, the smaller."""
    tasks: int
    """Test tasks, all domains together."""
    method: str
    covers: str
    """The sources of chance that the interval accounts for."""

    @property
    def p_value(self) -> float | None:
        """Two-sided chance of an estimate this far from zero; None where no spread was seen."""
        if self.degrees is None:
            return None
        return 2 * t_cdf(-abs(self.estimate) / self.standard_error, self.degrees)


class Sample(NamedTuple):
    """What an interval was counted from, and how."""

    seeds: int
    tasks: int
    method: str
    covers: str


class Part(NamedTuple):
    """One source of chance: the variance it gives an estimate, and how well that is known."""

    variance: float
    degrees: float


def t_interval(estimate: float, total: float, parts: Sequence[Part], sample: Sample) -> Interval:
    """The interval of an estimate of variance ``total``, with Satterthwaite's degrees of freedom.

    ``parts`` are the variances that ``total`` was put together from.
    """
    degrees = satterthwaite(total, parts)
    half = t_quantile((1 + CONFIDENCE) / 2, degrees) * sqrt(total) if degrees else 0.0
    return Interval(
        estimate=estimate,
        low=estimate - half,
        high=estimate + half,
        standard_error=sqrt(total),
        degrees=degrees,
        **sample._asdict(),
    )


def satterthwaite(total: float, parts: Sequence[Part]) -> float | None:
    """How well a variance is known that was put together from ``parts``; None without variance."""
    uncertainty = sum(part.variance**2 / part.degrees for part in parts)
    return total**2 / uncertainty if uncertainty else None


def seed_interval(values: Sequence[float], *, tasks: int) -> Interval:
    """Mean over seeds with its t interval, from one score of each run."""
    part = seed_part(values)
    sample = Sample(len(values), tasks, "t over seeds", SEEDS_COVERED)
    return t_interval(fmean(values), part.variance, [part], sample)


def seed_difference(values: Sequence[float], others: Sequence[float], *, tasks: int) -> Interval:
    """Mean of ``values`` less mean of ``others``, from one score of each run (Welch 1947)."""
    parts = [seed_part(values), seed_part(others)]
    sample = Sample(min(len(values), len(others)), tasks, "Welch t over seeds", SEEDS_COVERED)
    total = sum(part.variance for part in parts)
    return t_interval(fmean(values) - fmean(others), total, parts, sample)


def seed_part(values: Sequence[float]) -> Part:
    """What the choice of seeds adds to the variance of their mean."""
    if len(values) < 2:
        raise ConfigError(
            f"{len(values)} run(s) say nothing about the spread between seeds; two are the least"
        )
    return Part(variance(values) / len(values), len(values) - 1)


def task_interval(cell: Counts) -> Interval:
    """A cell's pass rate with its t interval over tasks, for tasks like these."""
    return _over_tasks([successes / trials for successes, trials in cell.values()], "t over tasks")


def task_difference(before: Counts, after: Counts) -> Interval:
    """Change of the pass rate between two cells, each task compared with itself."""
    require_same_tasks(before, after)
    changes = [after[task][0] / after[task][1] - c / n for task, (c, n) in before.items()]
    return _over_tasks(changes, "paired t over tasks")


def require_same_tasks(tasks: Collection[str], others: Collection[str]) -> None:
    """Refuse to compare measurements of different tasks."""
    if odd := sorted(set(tasks) ^ set(others)):
        shown = ", ".join(repr(task) for task in odd[:3])
        raise ConfigError(
            f"{len(odd)} task(s) were measured on one side only ({shown} …); "
            "scores are compared task by task, so evaluate both on the same tasks"
        )


def holm(p_values: Mapping[str, float | None]) -> dict[str, float | None]:
    """P values that hold for all comparisons at once (Holm 1979); a missing one still counts."""
    ranked = sorted((p, name) for name, p in p_values.items() if p is not None)
    adjusted: dict[str, float | None] = dict.fromkeys(p_values)
    largest = 0.0
    for rank, (p, name) in enumerate(ranked):
        largest = max(largest, min(1.0, p * (len(p_values) - rank)))
        adjusted[name] = largest
    return adjusted


def _over_tasks(values: Sequence[float], method: str) -> Interval:
    if len(values) < 2:
        raise ConfigError(f"{len(values)} task(s) have no spread; an interval needs two or more")
    part = Part(variance(values) / len(values), len(values) - 1)
    sample = Sample(1, len(values), method, TASKS_COVERED)
    return t_interval(fmean(values), part.variance, [part], sample)
