"""Confidence intervals of scores, and differences of methods from a baseline."""

from collections.abc import Collection, Mapping, Sequence
from random import Random
from statistics import fmean
from typing import NamedTuple, TypeVar

from grpo_cl.errors import ConfigError
from grpo_cl.metrics.bootstrap import Score, bootstrap_interval, shared_tasks
from grpo_cl.metrics.continual import average_performance, learning_accuracy
from grpo_cl.metrics.rmatrix import BASE, Cell, RMatrix
from grpo_cl.metrics.statistics import (
    SEEDS_COVERED,
    Interval,
    Sample,
    VarianceComponent,
    holm,
    residual_variance,
    seed_difference,
    seed_interval,
    t_interval,
    with_exact_ends,
    within_variance,
)
from grpo_cl.types import Record

K = TypeVar("K")
Runs = Mapping[int, RMatrix]
"""The runs of one method, by seed."""
Values = Mapping[int, float]
"""One score of each run of a method, by seed."""


PASS_RATES: tuple[Score, ...] = (average_performance, learning_accuracy)
"""Scores that are means of pass rates, one of each learned domain."""


class Comparison(Record):
    """The difference of one method from the baseline."""

    difference: Interval
    """The method's score minus the baseline's."""
    p_value: float | None
    """None with one seed of either method, or if the variance is zero."""
    p_holm: float | None = None
    """The p-value with Holm's correction for multiple comparisons; None for exploratory scores."""


class Analysis(NamedTuple):
    """How differences are computed; chosen before the results are known."""

    paired: Collection[str] = ()
    """Methods whose runs share their first stage with the baseline's runs of the same seed."""
    is_pooled: bool = False
    """Whether one variance is estimated from all methods together."""


def score_interval(runs: Sequence[RMatrix], score: Score, *, rng: Random) -> Interval | None:
    """The confidence interval of a method's score: over seeds, or over tasks for a single run.

    ``runs`` differ only in their seeds. None if the score of one of them is missing. Of a single
    run, a mean of pass rates has exact ends.
    """
    if len(runs) < 2:
        interval = bootstrap_interval(runs, score, rng=rng)
        return _exact(interval, runs[0]) if interval and score in PASS_RATES else interval
    values = _values(dict(enumerate(runs)), score)
    return None if values is None else seed_interval(list(values.values()), tasks=_count(runs))


def compare(
    methods: Mapping[str, Runs],
    baseline: str,
    score: Score,
    *,
    rng: Random,
    analysis: Analysis | None = None,
) -> dict[str, Comparison | None]:
    """The difference of every other method from ``baseline``, without correction.

    A difference from one seed of either method covers the noise of the evaluation only, so it has
    no p-value: the variance between seeds is unknown.
    """
    if baseline not in methods:
        raise ConfigError(
            f"the baseline {baseline!r} has no runs; methods with runs: {', '.join(methods)}"
        )
    tasks = _count([run for runs in methods.values() for run in runs.values()])
    values = {name: _values(runs, score) for name, runs in methods.items()}
    known = {name: found for name, found in values.items() if found is not None}
    differences = (
        seed_differences(known, baseline, analysis=analysis or Analysis(), tasks=tasks)
        if baseline in known
        else {}
    )
    comparisons: dict[str, Comparison | None] = {}
    for name in methods:
        if name == baseline:
            continue
        interval = differences.get(name)
        p_value = interval.p_value if interval else None
        if interval is None and name in known and baseline in known:
            groups = [list(methods[key].values()) for key in (name, baseline)]
            interval = bootstrap_interval(groups[0], score, rng=rng, baseline=groups[1])
        comparisons[name] = (
            Comparison(difference=interval, p_value=p_value) if interval is not None else None
        )
    return comparisons


def compare_policies(
    runs: Mapping[str, RMatrix], baseline: str, score: Score, *, rng: Random
) -> dict[str, Comparison | None]:
    """The difference of every other run from ``baseline`` over new tasks, with Holm's correction.

    Its p-values are about these trained policies. They say nothing about the methods that trained
    them, because the variance between seeds is unknown.
    """
    others = {name: run for name, run in runs.items() if name != baseline}
    intervals = {
        name: bootstrap_interval([run], score, rng=rng, baseline=[runs[baseline]])
        for name, run in others.items()
    }
    return corrected(
        {
            name: Comparison(difference=found, p_value=found.p_value) if found else None
            for name, found in intervals.items()
        }
    )


def corrected(comparisons: Mapping[K, Comparison | None]) -> dict[K, Comparison | None]:
    """The comparisons with Holm's correction over all of them; a missing one counts too."""
    names = {str(number): key for number, key in enumerate(comparisons)}
    found = {name: comparisons[key] for name, key in names.items()}
    p_values = holm({name: one.p_value if one else None for name, one in found.items()})
    return {
        key: one.model_copy(update={"p_holm": p_values[name]}) if (one := found[name]) else None
        for name, key in names.items()
    }


def seed_differences(
    values: Mapping[str, Values], baseline: str, *, analysis: Analysis, tasks: int
) -> dict[str, Interval]:
    """The difference of each method from ``baseline``, with its t interval over seeds.

    Methods with fewer than two seeds (two in common, where they are paired) have none.
    """
    reference = values[baseline]
    pairs = {
        name: sorted(set(found) & set(reference))
        for name, found in values.items()
        if name in analysis.paired and name != baseline
    }
    enough = [
        name
        for name, found in values.items()
        if name != baseline and min(len(pairs.get(name, found)), len(reference)) > 1
    ]
    variances = _pooled(values, baseline, pairs) if analysis.is_pooled and enough else None
    intervals: dict[str, Interval] = {}
    for name in enough:
        own, others = list(values[name].values()), list(reference.values())
        if name in pairs:
            changes = [values[name][seed] - reference[seed] for seed in pairs[name]]
            intervals[name] = _paired(changes, variances and variances.residual, tasks=tasks)
        elif variances is not None:
            intervals[name] = _unpaired(own, others, variances.within, tasks=tasks)
        else:
            intervals[name] = seed_difference(own, others, tasks=tasks)
    return intervals


def with_pooled_base(methods: Mapping[str, Runs]) -> dict[str, dict[int, RMatrix]]:
    """The runs with one row 0: all evaluations of the untrained policy together.

    Runs of one seed evaluate the same policy on the same episodes, so their rows 0 are counted
    once. Runs whose rows 0 differ although their seed is equal start from different policies and
    are returned as they are.
    """
    runs = [(seed, run) for found in methods.values() for seed, run in found.items()]
    by_seed: dict[int, list[Mapping[str, Cell]]] = {}
    for seed, run in runs:
        row = next((row.cells for row in run.rows if row.after == BASE), {})
        by_seed.setdefault(seed, []).append(row)
    firsts = [rows[0] for rows in by_seed.values()]
    tasks = [{domain: set(cell.tasks) for domain, cell in row.items()} for row in firsts]
    is_shared = all(map(_are_equal, by_seed.values())) and all(each == tasks[0] for each in tasks)
    if not is_shared or not firsts:
        return {name: dict(found) for name, found in methods.items()}
    pooled = {domain: pooled_cell([row[domain] for row in firsts]) for domain in firsts[0]}
    return {
        name: {seed: _with_base(run, pooled) for seed, run in found.items()}
        for name, found in methods.items()
    }


def pooled_cell(cells: Sequence[Cell]) -> Cell:
    """The mean of evaluations of one policy on the same tasks, with the sums of their counts."""
    tasks = {
        task: tuple(map(sum, zip(*(cell.tasks[task] for cell in cells), strict=True)))
        for task in cells[0].tasks
    }
    return Cell.model_validate({"mean": fmean(cell.mean for cell in cells), "tasks": tasks})


class _Pooled(NamedTuple):
    """Variances of one run's score that all methods have in common."""

    within: VarianceComponent
    """Between seeds, within a method."""
    residual: VarianceComponent
    """Between seeds, after the effect of a seed on all paired methods is removed."""


def _pooled(
    values: Mapping[str, Values], baseline: str, pairs: Mapping[str, Sequence[int]]
) -> _Pooled:
    paired = [name for name in (baseline, *pairs) if name == baseline or len(pairs[name]) > 1]
    seeds = sorted(set[int].intersection(*(set(values[name]) for name in paired)))
    is_block = len(paired) > 1 and len(seeds) > 1
    block = [[values[name][seed] for seed in seeds] for name in paired] if is_block else []
    groups = [
        list(found.values())
        for name, found in values.items()
        if len(found) > 1 and not (is_block and name in paired)
    ]
    within = within_variance(groups, block=block)
    return _Pooled(within, residual_variance(block) if block else within)


def _paired(
    changes: Sequence[float], residual: VarianceComponent | None, *, tasks: int
) -> Interval:
    if residual is None:
        method = "paired t over seeds"
        return seed_interval(changes, tasks=tasks).model_copy(update={"method": method})
    part = VarianceComponent(2 * residual.variance / len(changes), residual.degrees)
    sample = Sample(len(changes), tasks, "paired t over seeds, pooled variance", SEEDS_COVERED)
    return t_interval(fmean(changes), part.variance, [part], sample)


def _unpaired(
    own: Sequence[float], others: Sequence[float], within: VarianceComponent, *, tasks: int
) -> Interval:
    total = within.variance * (1 / len(own) + 1 / len(others))
    part = VarianceComponent(total, within.degrees)
    sample = Sample(
        min(len(own), len(others)), tasks, "t over seeds, pooled variance", SEEDS_COVERED
    )
    return t_interval(fmean(own) - fmean(others), total, [part], sample)


def _values(runs: Runs, score: Score) -> dict[int, float] | None:
    """The score of every run; None if one is missing or there is none."""
    found = {seed: score(run.scores()) for seed, run in runs.items()}
    known = {seed: value for seed, value in found.items() if value is not None}
    return known if known and len(known) == len(found) else None


def _exact(interval: Interval, run: RMatrix) -> Interval:
    """The interval of a mean of pass rates; each domain has the same weight."""
    learned = run.domains[: len(run.scores()) - 1]
    cells = [cell for domain in learned if (cell := run.cell(run.rows[-1].after, domain))]
    tasks, trials = (
        len(cells) ** 2 / sum(1 / count for count in counts)
        for counts in ([len(c.tasks) for c in cells], [c.num_episodes for c in cells])
    )
    return with_exact_ends(interval, tasks=tasks, trials=trials)


def _count(runs: Sequence[RMatrix]) -> int:
    return sum(len(ids) for ids in shared_tasks(runs).values())


def _are_equal(rows: Sequence[Mapping[str, Cell]]) -> bool:
    def counts(row: Mapping[str, Cell]) -> dict[str, object]:
        return {domain: (cell.mean, cell.tasks) for domain, cell in row.items()}

    return all(counts(row) == counts(rows[0]) for row in rows)


def _with_base(run: RMatrix, pooled: Mapping[str, Cell]) -> RMatrix:
    for domain in run.domains:
        if domain in pooled and run.cell(BASE, domain) is not None:
            run = run.with_cell(BASE, domain, pooled[domain])
    return run
