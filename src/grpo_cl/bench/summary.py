"""The runs of a campaign together: scores with intervals, differences, and what is missing."""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from statistics import fmean
from typing import Any, TypeVar

from grpo_cl.bench.campaign import Campaign
from grpo_cl.bench.drift import ForgettingFit, forgetting_fits
from grpo_cl.bench.results import Gathered, RunResult
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.bootstrap import Score, shared_tasks
from grpo_cl.metrics.breakdown import component_scores
from grpo_cl.metrics.comparisons import Comparison, compare, score_interval
from grpo_cl.metrics.continual import (
    OrderSummary,
    average_performance,
    backward_transfer,
    forgetting,
    forward_transfer,
    learning_accuracy,
    order_summary,
)
from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.metrics.statistics import Interval, seed_interval
from grpo_cl.types import Record

SCORES: dict[str, Score] = {
    "average_performance": average_performance,
    "learning_accuracy": learning_accuracy,
    "backward_transfer": backward_transfer,
    "forgetting": forgetting,
    "forward_transfer": forward_transfer,
}
WATCHED = ("stability_gap", "worst_case_performance")
"""Scores that evaluations within stages give."""
T = TypeVar("T")

MATCHED = 0.02
"""Costs that differ by less than this share are called equal."""


class MethodScores(Record):
    """One algorithm in one order."""

    label: str
    order: tuple[str, ...]
    finished: int
    """Runs the scores are from."""
    planned: int
    scores: dict[str, Interval | None]
    differences: dict[str, Comparison | None]
    """From the reference in the same order; p values are corrected within a score and an order."""
    components: dict[str, dict[str, float | None]]
    """Means of the scores of each reward component."""
    drift: dict[str, float]
    """Means of what every run measured of its drift and within stages."""
    costs: dict[str, float]
    """Means of the training ledger."""
    is_matched: bool | None
    """Whether the compute is the reference's; None where one of the two is missing."""


class OrderScores(Record):
    """One algorithm over all its orders."""

    label: str
    seeds: int
    """Seeds that finished every order."""
    scores: dict[str, Interval | None]
    """Of each seed's mean over the orders."""
    spread: dict[str, OrderSummary | None]
    """Of the means over seeds, one per order."""


class Summary(Record):
    """What a campaign says."""

    reference: str
    compute: str
    methods: tuple[MethodScores, ...]
    orders: tuple[OrderScores, ...]
    fits: tuple[ForgettingFit, ...]
    """Descriptive: over all runs of all algorithms, orders and seeds."""
    missing: tuple[str, ...]


def summarize(campaign: Campaign, gathered: Gathered) -> Summary:
    """Intervals and comparisons of every algorithm, and a sentence for whatever is missing."""
    missing = [_complaint(run) for run in gathered.runs if run.error]
    orders = list(dict.fromkeys(run.order for run in gathered.runs))
    methods = [
        scores for order in orders for scores in _of_order(campaign, gathered, order, missing)
    ]
    several = [m.label for m in gathered.methods if len(gathered.orders(m.label)) > 1]
    return Summary(
        reference=campaign.reference,
        compute=campaign.compute,
        methods=tuple(methods),
        orders=tuple(_over_orders(gathered, label) for label in several),
        fits=forgetting_fits([run.r_matrix for run in gathered.runs if run.r_matrix]),
        missing=tuple(dict.fromkeys(missing)),
    )


def _complaint(run: RunResult) -> str:
    return f"{run.label}, {' → '.join(run.order)}, seed {run.seed}: {run.error}."


def _of_order(
    campaign: Campaign, gathered: Gathered, order: tuple[str, ...], missing: list[str]
) -> list[MethodScores]:
    labels = [m.label for m in gathered.methods if order in gathered.orders(m.label)]
    runs = {label: gathered.finished(label, order) for label in labels}
    matrices = {
        label: [run.r_matrix for run in found if run.r_matrix] for label, found in runs.items()
    }
    differences = _differences(campaign, matrices, order, missing)
    reference = runs.get(campaign.reference, [])
    return [
        MethodScores(
            label=label,
            order=order,
            finished=len(runs[label]),
            planned=len(campaign.seeds),
            scores=_intervals(campaign, label, matrices[label], missing),
            differences={name: found.get(label) for name, found in differences.items()},
            components=_components(matrices[label]),
            drift=_mean_drift(runs[label]),
            costs=_mean_costs(runs[label]),
            is_matched=_is_matched(campaign.compute, runs[label], reference),
        )
        for label in labels
    ]


def _intervals(
    campaign: Campaign, label: str, matrices: Sequence[RMatrix], missing: list[str]
) -> dict[str, Interval | None]:
    if not matrices:
        return dict.fromkeys(SCORES)

    def interval(name: str) -> Interval | None:
        rng = Random(f"{campaign.name}/{label}/{name}")
        return score_interval(matrices, SCORES[name], rng=rng)

    return {name: _or_missing(lambda n=name: interval(n), label, missing) for name in SCORES}


def _differences(
    campaign: Campaign,
    matrices: Mapping[str, Sequence[RMatrix]],
    order: tuple[str, ...],
    missing: list[str],
) -> dict[str, dict[str, Comparison | None]]:
    known = {label: found for label, found in matrices.items() if found}
    if campaign.reference not in known:
        missing.append(
            f"{' → '.join(order)}: no finished run of the reference {campaign.reference!r}, so "
            "nothing is compared with it."
        )
        return {}

    def compared(name: str) -> dict[str, Comparison | None]:
        rng = Random(f"{campaign.name}/{order}/{name}")
        return compare(known, campaign.reference, SCORES[name], rng=rng)

    found = {name: _or_missing(lambda n=name: compared(n), name, missing) for name in SCORES}
    return {name: comparisons or {} for name, comparisons in found.items()}


def _or_missing(make: Callable[[], T], what: str, missing: list[str]) -> T | None:
    try:
        return make()
    except ConfigError as error:  # too little was measured for an interval
        missing.append(f"{what}: {error}.")
        return None


def _components(matrices: Sequence[RMatrix]) -> dict[str, dict[str, float | None]]:
    found = [component_scores(matrix) for matrix in matrices]
    names = dict.fromkeys(name for scores in found for name in scores)
    return {
        part: {
            name: _mean([dict(s[part])[name] if part in s else None for s in found])
            for name in SCORES
        }
        for part in names
    }


def _mean(values: Sequence[Any]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _mean_drift(runs: Sequence[RunResult]) -> dict[str, float]:
    found = [{**run.drift, **{name: run.scores.get(name) for name in WATCHED}} for run in runs]
    names = dict.fromkeys(name for numbers in found for name in numbers)
    means = {name: _mean([numbers.get(name) for numbers in found]) for name in names}
    return {name: value for name, value in means.items() if value is not None}


def _mean_costs(runs: Sequence[RunResult]) -> dict[str, float]:
    ledgers = [run.costs.training.model_dump() for run in runs if run.costs]
    return (
        {name: fmean(ledger[name] for ledger in ledgers) for name in ledgers[0]} if ledgers else {}
    )


def _is_matched(
    compute: str, runs: Sequence[RunResult], reference: Sequence[RunResult]
) -> bool | None:
    own, others = _mean_costs(runs).get(compute), _mean_costs(reference).get(compute)
    return None if own is None or not others else abs(own / others - 1) <= MATCHED


def _over_orders(gathered: Gathered, label: str) -> OrderScores:
    orders = gathered.orders(label)
    by_seed = [{run.seed: run for run in gathered.finished(label, order)} for order in orders]
    seeds = sorted(set[int].intersection(*(set(found) for found in by_seed)))
    rows = [[found[seed] for found in by_seed] for seed in seeds]
    matrices = [run.r_matrix for row in rows for run in row if run.r_matrix]
    tasks = sum(len(ids) for ids in shared_tasks(matrices).values())

    def interval(name: str) -> Interval | None:
        values = [_mean([run.scores[name] for run in row]) for row in rows]
        known = [value for value in values if value is not None]
        return seed_interval(known, tasks=tasks) if len(known) == len(values) > 1 else None

    def spread(name: str) -> OrderSummary | None:
        columns = [[row[place].scores[name] for row in rows] for place in range(len(orders))]
        return order_summary([_mean(column) for column in columns])

    return OrderScores(
        label=label,
        seeds=len(seeds),
        scores={name: interval(name) for name in SCORES},
        spread={name: spread(name) for name in SCORES},
    )
