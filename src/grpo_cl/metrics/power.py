"""Power analysis of a planned campaign. Formulas: docs/metrics.md."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from math import cos, exp, log, pi, sin, sqrt
from statistics import NormalDist, covariance, fmean, variance
from typing import Literal, NamedTuple

from pydantic import Field, NonNegativeFloat, PositiveInt

from grpo_cl.config import ConfigRecord
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.distributions import inverse, t_quantile
from grpo_cl.metrics.rmatrix import Cell, RMatrix
from grpo_cl.metrics.statistics import CONFIDENCE

DEFAULT_TASK_SPREAD = 4 / 9
"""The intraclass correlation of success probabilities distributed as Beta(0.5, 0.75)."""
MAX_SEEDS = 1000
_ANGLES, _RATIOS = 16, 40
_BISECTIONS = 25


class Design(ConfigRecord):
    """The design of a campaign."""

    tasks: tuple[PositiveInt, ...] = Field(default=(20, 40, 40), min_length=1)
    """Test tasks of each domain, in task order."""
    trials: PositiveInt = 4
    """Trials of each test task."""
    seeds: PositiveInt = 3
    """Training runs of each method."""
    level: float = Field(default=0.4, gt=0, lt=1)
    """Expected score of a cell."""
    task_spread: float = Field(default=DEFAULT_TASK_SPREAD, ge=0, le=1)
    """Share of a trial's variance that is between tasks (intraclass correlation): 0 if all tasks
    are equally hard, 1 if each is always or never solved."""
    seed_sd: NonNegativeFloat = 0.03
    """Standard deviation of a cell's true score between training seeds."""
    domain_correlation: float = Field(default=1.0, ge=0, le=1)
    """Correlation between seeds of two domains evaluated after the same stage: one policy moves
    them together. 1 is the worst case for an average."""
    test: Literal["welch", "paired", "pooled"] = "welch"
    """Welch's test; a test paired by seed, for methods that share their first stage; or that with a
    variance pooled over all methods."""
    pair_correlation: float = Field(default=0.0, ge=0, lt=1)
    """Correlation of two methods' runs of one seed, for a paired test."""
    comparisons: PositiveInt = 1
    """Methods compared with the baseline."""
    power: float = Field(default=0.8, gt=0.5, lt=1)
    """Statistical power, 1 − β: the probability of detecting a true difference."""

    @property
    def design_effect(self) -> float:
        """Inflation of the variance of average performance by the correlation of the domains."""
        return 1 + (len(self.tasks) - 1) * self.domain_correlation


class Precision(NamedTuple):
    """Standard errors of one score in a campaign."""

    one_run: float
    """Standard error of a single run's score due to evaluation."""
    method: float
    """Standard error of a method's mean over its seeds."""
    difference: float
    """Standard error of the difference between two methods."""
    half_width: float | None
    """Half-width of the 95 % confidence interval of a method's mean; None with one seed."""
    detectable: float | None
    """The minimum detectable difference between two methods; None with one seed."""


class DesignEstimates(NamedTuple):
    """Parameters of a design estimated from past runs; None if they do not determine one."""

    tasks: tuple[int, ...] | None
    trials: int | None
    level: float | None
    task_spread: float | None
    seed_sd: float | None
    domain_correlation: float | None


def precision_of_cell(design: Design, tasks: int) -> Precision:
    """The precision of the score on a domain with this many test tasks."""
    return _precision(
        design, evaluation=_evaluation_variance(design, tasks), seed=design.seed_sd**2
    )


def precision_of_average(design: Design) -> Precision:
    """The precision of average performance."""
    count = len(design.tasks)
    evaluation = sum(_evaluation_variance(design, tasks) for tasks in design.tasks)
    seed = design.seed_sd**2 * design.design_effect / count
    return _precision(design, evaluation=evaluation / count**2, seed=seed)


def precision_of_backward_transfer(design: Design) -> Precision | None:
    """The precision of backward transfer; None with one domain.

    The last row is one policy, whose domains are correlated; rows are assumed independent.
    """
    earlier = design.tasks[:-1]
    if not earlier:
        return None
    evaluation = sum(2 * _evaluation_variance(design, tasks) for tasks in earlier)
    count = len(earlier)
    seed = design.seed_sd**2 * (2 + (count - 1) * design.domain_correlation) / count
    return _precision(design, evaluation=evaluation / count**2, seed=seed)


def seeds_needed(
    design: Design, effect: float, precision: Callable[[Design], Precision | None]
) -> int | None:
    """The seeds per method that make this effect detectable; None if more than a thousand."""
    if effect <= 0:
        raise ConfigError(f"the effect must be positive (got {effect:g})")

    def is_enough(seeds: int) -> bool:
        result = precision(design.model_copy(update={"seeds": seeds}))
        return result is not None and result.detectable is not None and result.detectable <= effect

    candidates = range(2, MAX_SEEDS + 1)
    index = bisect_left(candidates, True, key=is_enough)  # noqa: FBT003  # the value of the key
    return candidates[index] if index < len(candidates) else None


def estimate_design(runs: Sequence[RMatrix]) -> DesignEstimates:
    """Parameters of a design, from runs of one method that differ only in their seeds."""
    if len({run.domains for run in runs}) != 1:
        raise ConfigError(f"{len(runs)} run(s) with different task orders; give runs of one order")
    tables = [_learned_cells(run) for run in runs]
    cells = [cell for table in tables for cell in table.values()]
    rates = [rate for cell in cells if (rate := cell.pass_rate) is not None]
    last = [table.get((domain, domain)) for table in tables[:1] for domain in runs[0].domains]
    sizes = tuple(len(cell.tasks) for cell in last if cell is not None)
    return DesignEstimates(
        tasks=sizes if 0 not in sizes and len(sizes) == len(last) else None,
        trials=min((n for cell in cells for _, n in cell.tasks.values()), default=None),
        level=fmean(rates) if rates else None,
        task_spread=_task_spread(cells),
        seed_sd=_seed_sd(tables),
        domain_correlation=_domain_correlation(tables),
    )


def _precision(design: Design, *, evaluation: float, seed: float) -> Precision:
    method = sqrt((evaluation + seed) / design.seeds)
    shared = design.pair_correlation if design.test != "welch" else 0.0
    difference = sqrt(2 * (1 - shared)) * method
    half_width = detectable = None
    if design.seeds > 1:
        half_width = t_quantile((1 + CONFIDENCE) / 2, design.seeds - 1) * method
        detectable = _detectable_errors(design) * difference
    return Precision(sqrt(evaluation), method, difference, half_width, detectable)


def _detectable_errors(design: Design) -> float:
    """The difference, in standard errors, that the test detects with the design's power.

    The power is integrated over the sample variances: over the estimated standard error, and for
    Welch's test over the ratio of the two variances, on which the degrees of freedom depend.
    """
    # Holm's first step is the strictest: the significance level divided by all comparisons.
    level = 1 - (1 - CONFIDENCE) / 2 / design.comparisons
    degrees = design.seeds - 1
    if design.test == "welch":
        critical = [(w, t_quantile(level, found)) for w, found in _welch_degrees(design.seeds)]
        ratios = _error_ratios(2 * degrees, _RATIOS)
    else:
        degrees *= design.comparisons if design.test == "pooled" else 1
        critical = [(1.0, t_quantile(level, degrees))]
        ratios = _error_ratios(degrees, _ANGLES * _RATIOS)
    cases = [(a * b, t * ratio) for a, t in critical for b, ratio in ratios]
    normal = NormalDist()

    def power(shift: float) -> float:
        return sum(weight * normal.cdf(shift - threshold) for weight, threshold in cases)

    return inverse(power, design.power, bisections=_BISECTIONS)


def _welch_degrees(seeds: int) -> list[tuple[float, float]]:
    """Quadrature of Welch's degrees of freedom for two equal variances: weights and values.

    One sample variance's share of the sum follows Beta((n-1)/2, (n-1)/2), symmetric around 1/2;
    substituting the square of a sine removes the poles of its density.
    """
    angles = [pi / 4 * (i + 0.5) / _ANGLES for i in range(_ANGLES)]
    weights = [sin(2 * angle) ** (seeds - 2) for angle in angles]
    degrees = [(seeds - 1) / (sin(angle) ** 4 + cos(angle) ** 4) for angle in angles]
    return [(w / sum(weights), value) for w, value in zip(weights, degrees, strict=True)]


def _error_ratios(degrees: int, count: int) -> list[tuple[float, float]]:
    """Quadrature of estimated over true standard error (chi distribution): weights and values."""
    reach = 6 / sqrt(2 * degrees)
    start, end = max(0.0, 1 - reach), 1 + reach
    ratios = [start + (end - start) * (i + 0.5) / count for i in range(count)]
    logs = [(degrees - 1) * log(ratio) - degrees * ratio * ratio / 2 for ratio in ratios]
    weights = [exp(value - max(logs)) for value in logs]
    return [(w / sum(weights), ratio) for w, ratio in zip(weights, ratios, strict=True)]


def _evaluation_variance(design: Design, tasks: int) -> float:
    within = design.level * (1 - design.level) * (1 - design.task_spread)
    return within / (tasks * design.trials)


def _learned_cells(run: RMatrix) -> dict[tuple[str, str], Cell]:
    """The cells in average performance and backward transfer, by stage and domain."""
    cells: dict[tuple[str, str], Cell] = {}
    for number, stage in enumerate(run.domains):
        for domain in run.domains[: number + 1]:
            cell = run.cell(stage, domain)
            if cell is not None:
                cells[stage, domain] = cell
    return cells


def _task_spread(cells: Sequence[Cell]) -> float | None:
    """Variance of the true success probabilities over that of a trial, pooled over cells."""
    between = total = 0.0
    for rates, noise in _pass_rates(cells):
        mean, spread = fmean(rates), variance(rates)
        between += spread - noise
        total += mean * (1 - mean) + spread / len(rates)
    return min(1.0, max(0.0, between / total)) if total else None


def _pass_rates(cells: Sequence[Cell]) -> Iterator[tuple[list[float], float]]:
    """The pass rates of each cell, and their mean variance due to trials."""
    for cell in cells:
        counts = list(cell.tasks.values())
        if len(counts) > 1 and min(n for _, n in counts) > 1:
            noise = fmean(c * (n - c) / (n * n * (n - 1)) for c, n in counts)
            yield [c / n for c, n in counts], noise


def _seed_sd(tables: Sequence[Mapping[tuple[str, str], Cell]]) -> float | None:
    """Standard deviation of a cell between runs, without the variance of trials, pooled."""
    variances: list[float] = []
    for key in tables[0]:
        cells = list(_pass_rates([table[key] for table in tables if key in table]))
        if len(cells) == len(tables) > 1:
            trials = fmean(noise / len(rates) for rates, noise in cells)
            variances.append(variance(fmean(rates) for rates, _ in cells) - trials)
    return sqrt(max(0.0, fmean(variances))) if variances else None


def _domain_correlation(tables: Sequence[Mapping[tuple[str, str], Cell]]) -> float | None:
    """Covariance between runs of two domains after one stage, over the variance of a cell.

    The trials of two domains are independent, so the covariance is that of seeds alone.
    """
    deviation = _seed_sd(tables)
    if not deviation:
        return None
    keys = [key for key in tables[0] if all(key in table for table in tables)]
    means = {key: [table[key].pass_rate or 0.0 for table in tables] for key in keys}
    covariances = [
        covariance(means[one], means[other])
        for one, other in combinations(keys, 2)
        if one[0] == other[0]
    ]
    return min(1.0, max(0.0, fmean(covariances) / deviation**2)) if covariances else None
