"""Statistics over the runs of a campaign: confidence intervals, differences, missing results."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from statistics import fmean
from typing import Any, TypeVar

from grpo_cl.campaigns.campaign import Campaign, ScoreName
from grpo_cl.campaigns.components import ComponentChange, component_changes
from grpo_cl.campaigns.drift import ForgettingFit, forgetting_fits
from grpo_cl.campaigns.results import CampaignResults, RunResult
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.bootstrap import Score, shared_tasks
from grpo_cl.metrics.breakdown import component_scores
from grpo_cl.metrics.comparisons import (
    Analysis,
    Comparison,
    compare,
    corrected,
    score_interval,
    seed_differences,
    with_pooled_base,
)
from grpo_cl.metrics.continual import (
    OrderSummary,
    average_performance,
    backward_transfer,
    forgetting,
    forward_transfer,
    learning_accuracy,
    mean_or_none,
    order_summary,
)
from grpo_cl.metrics.floors import floor_remarks, without_floor_tasks
from grpo_cl.metrics.rmatrix import DomainFacts, RMatrix
from grpo_cl.metrics.statistics import Interval, seed_interval
from grpo_cl.types import Record

SCORES: dict[ScoreName, Score] = {
    "average_performance": average_performance,
    "learning_accuracy": learning_accuracy,
    "backward_transfer": backward_transfer,
    "forgetting": forgetting,
    "forward_transfer": forward_transfer,
}
CURVE_SCORES = ("stability_gap", "worst_case_performance")
"""Scores that need evaluations within stages."""
T = TypeVar("T")
SeedRows = Mapping[int, Sequence[RunResult]]
"""The runs of an algorithm in all its orders, by seed."""

MATCHED = 0.02
"""Largest relative difference of costs that are called equal."""


class MethodScores(Record):
    """One algorithm in one task order."""

    label: str
    order: tuple[str, ...]
    finished: int
    """Finished runs; the scores are over them."""
    planned: int
    scores: dict[str, Interval | None]
    without_floor_tasks: dict[str, Interval | None]
    """The scores on the tasks that no policy without skill solves; None if they are not known."""
    differences: dict[str, Comparison | None]
    """From the reference in the same order; the p-values of the primary score are corrected for all
    algorithms and orders of the campaign, those of exploratory scores are not."""
    components: dict[str, dict[str, float | None]]
    """Mean scores of each reward component."""
    component_changes: dict[str, ComponentChange]
    """Forgetting by reward component: which part of the reward was lost."""
    drift: dict[str, float]
    """Means over runs of drift and of the scores that need evaluations within stages."""
    costs: dict[str, float]
    """Mean training costs."""
    is_matched: bool | None
    """Whether the compute equals that of the reference; None if either is unknown."""


class OrderScores(Record):
    """One algorithm over all its task orders."""

    label: str
    seeds: int
    """Seeds that finished every order."""
    scores: dict[str, Interval | None]
    """Intervals of each seed's mean over the orders."""
    spread: dict[str, OrderSummary | None]
    """Spread over orders of the means over seeds."""
    differences: dict[str, Comparison | None]
    """From the reference, in each seed's mean over the orders; exploratory, without correction."""


class Summary(Record):
    """The statistics of a campaign."""

    reference: str
    primary: ScoreName
    """The score that decides; differences in the others are exploratory."""
    compute: str
    floors: dict[str, DomainFacts]
    """The scores of policies without skill on the evaluation tasks of each domain."""
    methods: tuple[MethodScores, ...]
    orders: tuple[OrderScores, ...]
    fits: tuple[ForgettingFit, ...]
    """Descriptive regressions over all runs of all algorithms, orders and seeds."""
    missing: tuple[str, ...]
    """A sentence for each missing result."""
    remarks: tuple[str, ...]
    """A sentence for each gain that comes only from tasks that a policy without skill solves."""


def summarize(campaign: Campaign, results: CampaignResults) -> Summary:
    """Confidence intervals and comparisons of every algorithm, and the missing results."""
    missing = [_missing_run(run) for run in results.runs if run.error]
    orders = list(dict.fromkeys(run.order for run in results.runs))
    methods = _with_correction(
        campaign,
        [
            scores
            for order in orders
            for scores in _scores_of_order(campaign, results, order, missing)
        ],
    )
    several = [m.label for m in results.methods if len(results.orders(m.label)) > 1]
    return Summary(
        reference=campaign.reference,
        primary=campaign.primary,
        compute=campaign.compute,
        floors={
            domain: facts
            for run in results.runs
            if run.r_matrix
            for domain, facts in run.r_matrix.facts.items()
        },
        methods=tuple(methods),
        orders=tuple(_over_orders(campaign, results, several)),
        fits=forgetting_fits([run.r_matrix for run in results.runs if run.r_matrix]),
        missing=tuple(dict.fromkeys(missing)),
        remarks=tuple(
            f"{run.label}, {' → '.join(run.order)}, seed {run.seed}: {remark}"
            for run in results.runs
            if run.r_matrix
            for remark in floor_remarks(run.r_matrix)
        ),
    )


def _with_correction(campaign: Campaign, methods: Sequence[MethodScores]) -> list[MethodScores]:
    """The methods with Holm's correction of the primary score, over all of them and all orders."""
    primary = {
        number: method.differences.get(campaign.primary)
        for number, method in enumerate(methods)
        if method.label != campaign.reference
    }
    final = corrected(primary)
    return [
        method.model_copy(
            update={"differences": {**method.differences, campaign.primary: final[number]}}
        )
        if final.get(number)
        else method
        for number, method in enumerate(methods)
    ]


def _missing_run(run: RunResult) -> str:
    return f"{run.label}, {' → '.join(run.order)}, seed {run.seed}: {run.error}."


def _scores_of_order(
    campaign: Campaign, results: CampaignResults, order: tuple[str, ...], missing: list[str]
) -> list[MethodScores]:
    labels = [m.label for m in results.methods if order in results.orders(m.label)]
    runs = {label: results.finished(label, order) for label in labels}
    matrices = {
        label: [run.r_matrix for run in finished if run.r_matrix]
        for label, finished in runs.items()
    }
    differences = _differences(campaign, runs, order, missing)
    changes = component_changes(runs, campaign.reference, _analysis(campaign, runs))
    reference = runs.get(campaign.reference, [])
    return [
        MethodScores(
            label=label,
            order=order,
            finished=len(runs[label]),
            planned=len(campaign.seeds),
            scores=_intervals(campaign, label, matrices[label], missing),
            without_floor_tasks=_without_floor_tasks(campaign, label, matrices[label]),
            differences={name: of_label.get(label) for name, of_label in differences.items()},
            components=_components(matrices[label]),
            component_changes=changes[label],
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

    def interval(name: ScoreName) -> Interval | None:
        rng = Random(f"{campaign.name}/{label}/{name}")
        return score_interval(matrices, SCORES[name], rng=rng)

    return {name: _or_missing(lambda n=name: interval(n), label, missing) for name in SCORES}


def _without_floor_tasks(
    campaign: Campaign, label: str, matrices: Sequence[RMatrix]
) -> dict[str, Interval | None]:
    remaining = [without_floor_tasks(matrix) for matrix in matrices]
    known = [matrix for matrix in remaining if matrix is not None]
    if len(known) < len(remaining):  # runs of a version that did not play the floor policies
        return dict.fromkeys(SCORES)
    return _intervals(campaign, label, known, [])


def _differences(
    campaign: Campaign,
    runs: Mapping[str, Sequence[RunResult]],
    order: tuple[str, ...],
    missing: list[str],
) -> dict[str, dict[str, Comparison | None]]:
    finished = {
        label: {run.seed: run.r_matrix for run in group if run.r_matrix}
        for label, group in runs.items()
        if group
    }
    if campaign.reference not in finished:
        missing.append(
            f"{' → '.join(order)}: no finished run of the reference {campaign.reference!r}, so "
            "there are no differences."
        )
        return {}
    if len(finished) > 1 and len(finished[campaign.reference]) == 1:
        missing.append(
            f"{' → '.join(order)}: one seed of {campaign.reference!r}, so differences have no "
            "p-values."
        )
    pooled = with_pooled_base(finished)
    analysis = _analysis(campaign, runs)

    def compared(name: ScoreName) -> dict[str, Comparison | None]:
        rng = Random(f"{campaign.name}/{order}/{name}")
        return compare(pooled, campaign.reference, SCORES[name], rng=rng, analysis=analysis)

    return {name: _or_missing(lambda n=name: compared(n), name, missing) or {} for name in SCORES}


def _analysis(campaign: Campaign, runs: Mapping[str, Sequence[RunResult]]) -> Analysis:
    stages = {run.seed: run.shared_stage for run in runs.get(campaign.reference, ())}
    return Analysis(
        paired=[label for label, group in runs.items() if _share_stages(group, stages)],
        is_pooled=campaign.variance == "pooled",
    )


def _share_stages(runs: Sequence[RunResult], stages: Mapping[int, str | None]) -> bool:
    """Whether all runs whose seed the reference has too continue its shared first stages."""
    pairs = [(run.shared_stage, stages[run.seed]) for run in runs if run.seed in stages]
    return bool(pairs) and all(own is not None and own == other for own, other in pairs)


def _or_missing(compute: Callable[[], T], subject: str, missing: list[str]) -> T | None:
    try:
        return compute()
    except ConfigError as error:  # too few tasks or runs for an interval
        missing.append(f"{subject}: {error}.")
        return None


def _components(matrices: Sequence[RMatrix]) -> dict[str, dict[str, float | None]]:
    by_run: list[Mapping[str, Mapping[str, Any]]] = [component_scores(m) for m in matrices]
    components = dict.fromkeys(name for scores in by_run for name in scores)
    return {
        component: {
            name: mean_or_none(s[component][name] if component in s else None for s in by_run)
            for name in SCORES
        }
        for component in components
    }


def _mean_drift(runs: Sequence[RunResult]) -> dict[str, float]:
    by_run = [
        {**run.drift, **{name: run.scores.get(name) for name in CURVE_SCORES}} for run in runs
    ]
    names = dict.fromkeys(name for numbers in by_run for name in numbers)
    means = {name: mean_or_none(numbers.get(name) for numbers in by_run) for name in names}
    return {name: value for name, value in means.items() if value is not None}


def _mean_costs(runs: Sequence[RunResult]) -> dict[str, float]:
    costs = [run.costs.training.model_dump() for run in runs if run.costs]
    return {name: fmean(counts[name] for counts in costs) for name in costs[0]} if costs else {}


def _is_matched(
    compute: str, runs: Sequence[RunResult], reference: Sequence[RunResult]
) -> bool | None:
    own, others = _mean_costs(runs).get(compute), _mean_costs(reference).get(compute)
    return None if own is None or not others else abs(own / others - 1) <= MATCHED


def _over_orders(
    campaign: Campaign, results: CampaignResults, labels: Sequence[str]
) -> Iterator[OrderScores]:
    """The algorithms that have several task orders, over those orders."""
    rows = {label: _complete_seeds(results, label) for label in labels}
    differences = {name: _order_differences(campaign, rows, name) for name in SCORES}
    for label in labels:
        yield OrderScores(
            label=label,
            seeds=len(rows[label]),
            scores={name: _order_interval(rows[label], name) for name in SCORES},
            spread={name: _order_spread(rows[label], name) for name in SCORES},
            differences={name: differences[name].get(label) for name in SCORES},
        )


def _complete_seeds(results: CampaignResults, label: str) -> SeedRows:
    """The seeds that finished every order of an algorithm."""
    orders = results.orders(label)
    by_order = [{run.seed: run for run in results.finished(label, order)} for order in orders]
    seeds = sorted(set[int].intersection(*(set(runs) for runs in by_order)))
    return {seed: [runs[seed] for runs in by_order] for seed in seeds}


def _count_tasks(rows: SeedRows) -> int:
    matrices = [run.r_matrix for row in rows.values() for run in row if run.r_matrix]
    return sum(map(len, shared_tasks(matrices).values()))


def _order_means(rows: SeedRows, name: str) -> dict[int, float] | None:
    """The mean over orders of each seed; None if one is missing."""
    means = {seed: mean_or_none(run.scores[name] for run in row) for seed, row in rows.items()}
    known = {seed: value for seed, value in means.items() if value is not None}
    return known if known and len(known) == len(means) else None


def _order_interval(rows: SeedRows, name: str) -> Interval | None:
    means = _order_means(rows, name)
    if means is None or len(means) < 2:
        return None
    return seed_interval(list(means.values()), tasks=_count_tasks(rows))


def _order_spread(rows: SeedRows, name: str) -> OrderSummary | None:
    columns = zip(*rows.values(), strict=True)
    means = [mean_or_none(run.scores[name] for run in column) for column in columns]
    return order_summary(means, is_better_high=name != "forgetting")


def _order_differences(
    campaign: Campaign, rows: Mapping[str, SeedRows], name: str
) -> dict[str, Comparison]:
    """The differences of the algorithms that have the orders of the reference."""

    def orders(label: str) -> list[tuple[str, ...]]:
        return [run.order for run in next(iter(rows[label].values()), ())]

    if not rows.get(campaign.reference):
        return {}
    labels = [label for label in rows if orders(label) == orders(campaign.reference)]
    by_order = [
        {label: [row[place] for row in rows[label].values()] for label in labels}
        for place in range(len(orders(campaign.reference)))
    ]
    pairs = [set(_analysis(campaign, runs).paired) for runs in by_order]
    analysis = Analysis(set[str].intersection(*pairs), campaign.variance == "pooled")
    values = {label: means for label in labels if (means := _order_means(rows[label], name))}
    if campaign.reference not in values:
        return {}
    tasks = _count_tasks(rows[campaign.reference])
    found = seed_differences(values, campaign.reference, analysis=analysis, tasks=tasks)
    return {k: Comparison(difference=one, p_value=one.p_value) for k, one in found.items()}
