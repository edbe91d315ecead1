"""Forgetting by reward component: tool choice, arguments, database, communication."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from grpo_cl.campaigns.results import RunResult
from grpo_cl.metrics.breakdown import component_scores
from grpo_cl.metrics.comparisons import Analysis, Comparison, seed_differences
from grpo_cl.metrics.statistics import Interval, seed_interval
from grpo_cl.types import Record


class ComponentChange(Record):
    """The backward transfer of one reward component: what later stages did to it."""

    mean: float
    """Over seeds."""
    interval: Interval | None
    """Over seeds; None with one seed."""
    difference: Comparison | None
    """From the reference, exploratory and without correction; None with one seed."""


def component_changes(
    runs: Mapping[str, Sequence[RunResult]], reference: str, analysis: Analysis
) -> dict[str, dict[str, ComponentChange]]:
    """The change of every component for every algorithm; ``runs`` are by label.

    A component that no earlier domain is judged by is absent.
    """
    by_run = {
        label: {run.seed: component_scores(run.r_matrix) for run in group if run.r_matrix}
        for label, group in runs.items()
    }
    components = dict.fromkeys(
        name for found in by_run.values() for scores in found.values() for name in scores
    )
    changes: dict[str, dict[str, ComponentChange]] = {label: {} for label in runs}
    for component in components:
        values = {
            label: {
                seed: scores[component]["backward_transfer"]
                for seed, scores in found.items()
                if component in scores
            }
            for label, found in by_run.items()
        }
        for label, change in _change_of(values, reference, analysis).items():
            changes[label][component] = change
    return changes


def _change_of(
    values: Mapping[str, Mapping[int, float | None]], reference: str, analysis: Analysis
) -> dict[str, ComponentChange]:
    """The change of one component for every algorithm; ``values`` are by label and seed."""
    known = {
        label: {seed: value for seed, value in found.items() if value is not None}
        for label, found in values.items()
    }
    known = {label: found for label, found in known.items() if found}
    differences = (
        seed_differences(known, reference, analysis=analysis, tasks=0) if reference in known else {}
    )
    return {
        label: ComponentChange(
            mean=fmean(found.values()),
            interval=seed_interval(list(found.values()), tasks=0) if len(found) > 1 else None,
            difference=Comparison(difference=difference, p_value=difference.p_value)
            if (difference := differences.get(label))
            else None,
        )
        for label, found in known.items()
    }
