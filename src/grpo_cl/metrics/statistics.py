"""Confidence intervals, tests and regression. Derivations: docs/metrics.md."""

from collections.abc import Collection, Mapping, Sequence
from math import sqrt
from statistics import correlation, fmean, linear_regression, variance
from typing import NamedTuple

from grpo_cl.errors import ConfigError
from grpo_cl.metrics.continual import Counts
from grpo_cl.metrics.distributions import beta_quantile, t_cdf, t_quantile
from grpo_cl.types import Record

CONFIDENCE = 0.95
MIN_FIT_POINTS = 3
"""A line fits any two points."""
ROUNDING = 1e-12
"""Values that differ by less are equal: differences of shares of tasks are rounded."""
SEEDS_COVERED = "training seeds and trials, on these tasks"
TASKS_COVERED = "evaluation noise only (tasks and trials of one run)"
BOTH_COVERED = "training seeds, tasks and trials"
EXACT = "Clopper-Pearson over tasks"


class Interval(Record):
    """An estimate with its 95 % confidence interval, and the sources of variance it covers."""

    estimate: float
    low: float
    high: float
    standard_error: float
    degrees: float | None
    """Degrees of freedom of the t distribution; None if the sample variance is zero."""
    seeds: int
    """Training runs; the smaller number of two groups."""
    tasks: int
    """Test tasks of all domains."""
    method: str
    covers: str
    """The sources of variance that the interval accounts for."""

    @property
    def p_value(self) -> float | None:
        """The two-sided p-value of a difference from zero; None if the variance is zero."""
        if self.degrees is None:
            return None
        return 2 * t_cdf(-abs(self.estimate) / self.standard_error, self.degrees)


class Sample(NamedTuple):
    """The sample of an interval, and the method that computed it."""

    seeds: int
    tasks: int
    method: str
    covers: str


class VarianceComponent(NamedTuple):
    """The variance of an estimate due to one source, with its degrees of freedom."""

    variance: float
    degrees: float


def t_interval(
    estimate: float, total: float, parts: Sequence[VarianceComponent], sample: Sample
) -> Interval:
    """The confidence interval of an estimate of variance ``total``, a sum of ``parts``.

    The degrees of freedom are Satterthwaite's.
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


def satterthwaite(total: float, parts: Sequence[VarianceComponent]) -> float | None:
    """Satterthwaite's degrees of freedom of a variance, a sum of ``parts``; None if it is zero."""
    uncertainty = sum(part.variance**2 / part.degrees for part in parts)
    return total**2 / uncertainty if uncertainty else None


def seed_interval(values: Sequence[float], *, tasks: int) -> Interval:
    """The mean over seeds with its t interval, from one score of each run."""
    part = seed_variance(values)
    sample = Sample(len(values), tasks, "t over seeds", SEEDS_COVERED)
    return t_interval(fmean(values), part.variance, [part], sample)


def seed_difference(values: Sequence[float], others: Sequence[float], *, tasks: int) -> Interval:
    """The mean of ``values`` minus that of ``others`` with Welch's t interval (Welch 1947)."""
    parts = [seed_variance(values), seed_variance(others)]
    sample = Sample(min(len(values), len(others)), tasks, "Welch t over seeds", SEEDS_COVERED)
    total = sum(part.variance for part in parts)
    return t_interval(fmean(values) - fmean(others), total, parts, sample)


def seed_variance(values: Sequence[float]) -> VarianceComponent:
    """The variance of the mean over seeds."""
    if len(values) < 2:
        raise ConfigError(
            f"{len(values)} run(s) do not determine the variance between seeds; train two or more"
        )
    return _variance_of_mean(values)


def within_variance(
    groups: Sequence[Sequence[float]], *, block: Sequence[Sequence[float]] = ()
) -> VarianceComponent:
    """The variance of a value within groups, pooled over them (one-way analysis of variance).

    The rows of ``block`` are groups too, whose columns have an effect in common. The variance of
    that effect is estimated from the few columns alone, so the degrees of freedom are
    Satterthwaite's.
    """
    apart = sum(len(group) - 1 for group in groups)
    squares = sum(variance(group) * (len(group) - 1) for group in groups)
    strata = [VarianceComponent(squares / apart, apart)] if apart else []
    if block:
        means = [fmean(column) for column in zip(*block, strict=True)]
        strata.append(VarianceComponent(len(block) * variance(means), len(means) - 1))
        strata.append(residual_variance(block))
    degrees = sum(stratum.degrees for stratum in strata)
    parts = [VarianceComponent(ms * found / degrees, found) for ms, found in strata]
    total = sum(part.variance for part in parts)
    return VarianceComponent(total, satterthwaite(total, parts) or degrees)


def residual_variance(rows: Sequence[Sequence[float]]) -> VarianceComponent:
    """The variance of a value after the means of its row and of its column are removed.

    Rows are methods and columns seeds: a randomised block design.
    """
    row_means = [fmean(row) for row in rows]
    column_means = [fmean(column) for column in zip(*rows, strict=True)]
    mean = fmean(row_means)
    squares = sum(
        (value - row_mean - column_mean + mean) ** 2
        for row, row_mean in zip(rows, row_means, strict=True)
        for value, column_mean in zip(row, column_means, strict=True)
    )
    degrees = (len(rows) - 1) * (len(column_means) - 1)
    return VarianceComponent(squares / degrees, degrees)


def task_interval(cell: Counts) -> Interval:
    """A cell's pass rate with its exact interval over tasks."""
    rates = [successes / trials for successes, trials in cell.values()]
    over_tasks = mean_over_tasks(rates, EXACT)
    trials = sum(trials for _, trials in cell.values())
    return with_exact_ends(over_tasks, tasks=len(rates), trials=trials)


def with_exact_ends(interval: Interval, *, tasks: float, trials: float) -> Interval:
    """The interval of a pass rate with exact ends, which hold for few successes too.

    With one trial per task it is Clopper and Pearson's. Trials of one task are correlated: with
    several, the number of trials is replaced by the effective one (Korn and Graubard 1998), which
    is never below the number of tasks.
    """
    rate, effective = interval.estimate, tasks
    if interval.degrees is not None:
        level = (1 + CONFIDENCE) / 2
        shrink = (t_quantile(level, trials - 1) / t_quantile(level, interval.degrees)) ** 2
        effective = rate * (1 - rate) / interval.standard_error**2 * shrink
    low, high = clopper_pearson(rate, min(max(effective, tasks), trials))
    return interval.model_copy(update={"low": low, "high": high, "method": EXACT})


def clopper_pearson(rate: float, trials: float) -> tuple[float, float]:
    """The exact confidence interval of a probability (Clopper and Pearson 1934)."""
    tail, successes = (1 - CONFIDENCE) / 2, rate * trials
    low = beta_quantile(tail, successes, trials - successes + 1) if rate > 0 else 0.0
    high = beta_quantile(1 - tail, successes + 1, trials - successes) if rate < 1 else 1.0
    return low, high


def task_difference(before: Counts, after: Counts) -> Interval:
    """The change of the pass rate between two cells, paired over tasks."""
    require_same_tasks(before, after)
    changes = [after[task][0] / after[task][1] - c / n for task, (c, n) in before.items()]
    return mean_over_tasks(changes, "paired t over tasks")


def require_same_tasks(tasks: Collection[str], others: Collection[str]) -> None:
    """Raise unless both evaluations are of the same tasks."""
    if different := sorted(set(tasks) ^ set(others)):
        shown = ", ".join(repr(task) for task in different[:3])
        raise ConfigError(
            f"{len(different)} task(s) were evaluated on one side only ({shown} …); "
            "scores are paired over tasks, so evaluate both on the same tasks"
        )


def holm(p_values: Mapping[str, float | None]) -> dict[str, float | None]:
    """P-values with Holm's correction (Holm 1979); a missing one counts as a comparison."""
    ranked = sorted((p, name) for name, p in p_values.items() if p is not None)
    adjusted: dict[str, float | None] = dict.fromkeys(p_values)
    largest = 0.0
    for rank, (p, name) in enumerate(ranked):
        largest = max(largest, min(1.0, p * (len(p_values) - rank)))
        adjusted[name] = largest
    return adjusted


def mean_over_tasks(values: Sequence[float], method: str) -> Interval:
    """The mean of one value per task with its t interval."""
    if len(values) < 2:
        raise ConfigError(f"{len(values)} task(s) have no variance; an interval needs two or more")
    part = _variance_of_mean(values)
    sample = Sample(1, len(values), method, TASKS_COVERED)
    return t_interval(fmean(values), part.variance, [part], sample)


def _variance_of_mean(values: Sequence[float]) -> VarianceComponent:
    has_spread = max(values) - min(values) > ROUNDING
    squares = variance(values) if has_spread else 0.0
    return VarianceComponent(squares / len(values), len(values) - 1)


class LinearFit(Record):
    """A least-squares line."""

    slope: float
    intercept: float
    r_squared: float | None
    """Share of the variance of y that the line explains; None if y does not vary."""
    points: int


def least_squares(points: Sequence[tuple[float, float]]) -> LinearFit | None:
    """The line through pairs of x and y; None for fewer than three, or if x does not vary."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    if len(points) < MIN_FIT_POINTS or len(set(xs)) == 1:
        return None
    line = linear_regression(xs, ys)
    is_flat = len(set(ys)) == 1
    return LinearFit(
        slope=line.slope,
        intercept=line.intercept,
        r_squared=None if is_flat else correlation(xs, ys) ** 2,
        points=len(points),
    )
