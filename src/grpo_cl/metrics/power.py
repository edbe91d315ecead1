"""What difference a campaign can detect, before it is run. Formulas: docs/metrics.md."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import cos, exp, log, pi, sin, sqrt
from statistics import NormalDist, fmean, variance
from typing import NamedTuple

from pydantic import Field, NonNegativeFloat, PositiveInt

from grpo_cl.errors import ConfigError
from grpo_cl.metrics.distributions import t_quantile
from grpo_cl.metrics.rmatrix import Cell, RMatrix
from grpo_cl.metrics.statistics import CONFIDENCE
from grpo_cl.types import Record

SPREAD = 4 / 9
"""Of success chances that follow Beta(0.5, 0.75): mean 0.4, most tasks nearly always the same."""
MOST_SEEDS = 1000
_ANGLES, _ROOTS = 16, 40
_HALVINGS = 25


class Design(Record):
    """A campaign in numbers."""

    tasks: tuple[PositiveInt, ...] = Field(default=(20, 40, 40), min_length=1)
    """Test tasks of each domain, in the order they are learned."""
    trials: PositiveInt = 4
    """Plays of each test task."""
    seeds: PositiveInt = 3
    """Training runs of each method."""
    level: float = Field(default=0.4, gt=0, lt=1)
    """Expected score of a cell."""
    task_spread: float = Field(default=SPREAD, ge=0, le=1)
    """Share of a play's variance that lies between tasks: 0 if all tasks are equally hard, 1 if
    each is always or never solved."""
    seed_sd: NonNegativeFloat = 0.03
    """Standard deviation of a cell's true score between training seeds."""
    comparisons: PositiveInt = 1
    """Methods compared with the baseline."""
    power: float = Field(default=0.8, gt=0.5, lt=1)
    """Chance of finding a difference that is there."""


class Precision(NamedTuple):
    """How well a campaign knows one score."""

    one_run: float
    """Standard error of a single run's score, from evaluation alone."""
    method: float
    """Standard error of a method's mean over its seeds."""
    difference: float
    """Standard error of the difference between two methods."""
    half_width: float | None
    """Of the 95 % interval of a method's mean; None with one seed."""
    detectable: float | None
    """The least difference between two methods that is found; None with one seed."""


class Habits(NamedTuple):
    """What past runs say about a design; None where they say nothing."""

    tasks: tuple[int, ...] | None
    trials: int | None
    level: float | None
    task_spread: float | None
    seed_sd: float | None


def precision_of_cell(design: Design, tasks: int) -> Precision:
    """How well the score on a domain with this many test tasks is known."""
    return _precision(design, evaluation=_play_variance(design, tasks), seed=design.seed_sd**2)


def precision_of_average(design: Design) -> Precision:
    """How well average performance is known."""
    count = len(design.tasks)
    plays = sum(_play_variance(design, tasks) for tasks in design.tasks)
    return _precision(design, evaluation=plays / count**2, seed=design.seed_sd**2 / count)


def precision_of_backward_transfer(design: Design) -> Precision | None:
    """How well backward transfer is known; None with one domain."""
    earlier = design.tasks[:-1]
    if not earlier:
        return None
    plays = sum(2 * _play_variance(design, tasks) for tasks in earlier)
    count = len(earlier)
    return _precision(design, evaluation=plays / count**2, seed=2 * design.seed_sd**2 / count)


def seeds_needed(
    design: Design, effect: float, precision: Callable[[Design], Precision | None]
) -> int | None:
    """Seeds of each method that make this difference detectable; None if a thousand do not."""
    if effect <= 0:
        raise ConfigError(f"an effect of {effect:g} cannot be looked for; give one above 0")

    def is_enough(seeds: int) -> bool:
        found = precision(design.model_copy(update={"seeds": seeds}))
        return found is not None and found.detectable is not None and found.detectable <= effect

    candidates = range(2, MOST_SEEDS + 1)
    place = bisect_left(candidates, True, key=is_enough)  # noqa: FBT003  # a key's own values
    return candidates[place] if place < len(candidates) else None


def habits(runs: Sequence[RMatrix]) -> Habits:
    """What runs of one method that differ in their seeds say about runs to come."""
    if len({run.domains for run in runs}) != 1:
        raise ConfigError(
            f"{len(runs)} run(s) with different orders of domains; give runs of one order"
        )
    tables = [_learned_cells(run) for run in runs]
    cells = [cell for table in tables for cell in table.values()]
    rates = [rate for cell in cells if (rate := cell.pass_rate) is not None]
    last = [table.get((domain, domain)) for table in tables[:1] for domain in runs[0].domains]
    sizes = tuple(len(cell.tasks) for cell in last if cell is not None)
    return Habits(
        tasks=sizes if 0 not in sizes and len(sizes) == len(last) else None,
        trials=min((n for cell in cells for _, n in cell.tasks.values()), default=None),
        level=fmean(rates) if rates else None,
        task_spread=_task_spread(cells),
        seed_sd=_seed_sd(tables),
    )


def _precision(design: Design, *, evaluation: float, seed: float) -> Precision:
    method = sqrt((evaluation + seed) / design.seeds)
    difference = sqrt(2) * method
    half = found = None
    if design.seeds > 1:
        half = t_quantile((1 + CONFIDENCE) / 2, design.seeds - 1) * method
        found = _found_from(design) * difference
    return Precision(sqrt(evaluation), method, difference, half, found)


def _found_from(design: Design) -> float:
    """Standard errors by which two methods must differ for Welch's test to find it.

    A chance of rejection is a mean over what the two sample variances can be: their sum, and their
    shares of it, on which the degrees of freedom depend.
    """
    # Holm's first step, the hardest: the level is shared by all comparisons.
    level = 1 - (1 - CONFIDENCE) / 2 / design.comparisons
    limits = [(w, t_quantile(level, degrees)) for w, degrees in _welch_degrees(design.seeds)]
    cases = [(a * b, t * root) for a, t in limits for b, root in _pooled_roots(design.seeds)]
    normal = NormalDist()

    def chance(shift: float) -> float:
        return sum(weight * normal.cdf(shift - limit) for weight, limit in cases)

    low, high = 0.0, 1.0
    while chance(high) < design.power:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle) < design.power else (low, middle)
    return high


def _welch_degrees(seeds: int) -> list[tuple[float, float]]:
    """Welch's degrees of freedom for two equal variances, each with its weight.

    The smaller sample's share of the sum follows half of Beta((n-1)/2, (n-1)/2); as the square of
    a sine it has a density without poles.
    """
    angles = [pi / 4 * (i + 0.5) / _ANGLES for i in range(_ANGLES)]
    weights = [sin(2 * angle) ** (seeds - 2) for angle in angles]
    degrees = [(seeds - 1) / (sin(angle) ** 4 + cos(angle) ** 4) for angle in angles]
    return [(w / sum(weights), found) for w, found in zip(weights, degrees, strict=True)]


def _pooled_roots(seeds: int) -> list[tuple[float, float]]:
    """Estimated over true standard error, each value with its weight (a chi distribution)."""
    degrees = 2 * (seeds - 1)
    reach = 6 / sqrt(2 * degrees)
    start, end = max(0.0, 1 - reach), 1 + reach
    roots = [start + (end - start) * (i + 0.5) / _ROOTS for i in range(_ROOTS)]
    logs = [(degrees - 1) * log(root) - degrees * root * root / 2 for root in roots]
    weights = [exp(value - max(logs)) for value in logs]
    return [(w / sum(weights), root) for w, root in zip(weights, roots, strict=True)]


def _play_variance(design: Design, tasks: int) -> float:
    within = design.level * (1 - design.level) * (1 - design.task_spread)
    return within / (tasks * design.trials)


def _learned_cells(run: RMatrix) -> dict[tuple[str, str], Cell]:
    """The cells that average performance and backward transfer come from, by stage and domain."""
    found: dict[tuple[str, str], Cell] = {}
    for number, stage in enumerate(run.domains):
        for domain in run.domains[: number + 1]:
            cell = run.cell(stage, domain)
            if cell is not None:
                found[stage, domain] = cell
    return found


def _task_spread(cells: Sequence[Cell]) -> float | None:
    """Variance of true success chances over that of a play, pooled over cells."""
    between = whole = 0.0
    for rates, noise in _played(cells):
        mean, spread = fmean(rates), variance(rates)
        between += spread - noise
        whole += mean * (1 - mean) + spread / len(rates)
    return min(1.0, max(0.0, between / whole)) if whole else None


def _played(cells: Sequence[Cell]) -> Iterator[tuple[list[float], float]]:
    """The pass rates of each cell and the mean variance that plays give them."""
    for cell in cells:
        counts = list(cell.tasks.values())
        if len(counts) > 1 and min(n for _, n in counts) > 1:
            noise = fmean(c * (n - c) / (n * n * (n - 1)) for c, n in counts)
            yield [c / n for c, n in counts], noise


def _seed_sd(tables: Sequence[Mapping[tuple[str, str], Cell]]) -> float | None:
    """Spread between runs of the same cell, less what the plays explain, pooled over cells."""
    found: list[float] = []
    for place in tables[0]:
        played = list(_played([table[place] for table in tables if place in table]))
        if len(played) == len(tables) > 1:
            plays = fmean(noise / len(rates) for rates, noise in played)
            found.append(variance(fmean(rates) for rates, _ in played) - plays)
    return sqrt(max(0.0, fmean(found))) if found else None
