"""Forgetting in detail: scores by reward component and by task."""

from collections.abc import Mapping
from math import isnan
from statistics import fmean
from typing import Any, NamedTuple, cast

from grpo_cl.metrics.continual import (
    NOT_JUDGED,
    ContinualScores,
    Counts,
    continual_scores,
)
from grpo_cl.metrics.rmatrix import BASE, RMatrix
from grpo_cl.metrics.statistics import require_same_tasks, task_difference

MIN_GAIN_ERRORS = 1.64
"""Standard errors that a gain must exceed to be significant: a one-sided test at 5 %."""


class Churn(NamedTuple):
    """Probabilities that a task's outcome flips between two cells."""

    lost: float
    """Probability that a trial before succeeds and one after fails."""
    won: float
    """Probability that a trial before fails and one after succeeds."""
    null: float
    """Either probability if the policy had not changed."""

    @property
    def excess_lost(self) -> float:
        """The probability of a loss beyond chance."""
        return self.lost - self.null

    @property
    def excess_won(self) -> float:
        """The probability of a gain beyond chance."""
        return self.won - self.null


def component_scores(matrix: RMatrix) -> dict[str, ContinualScores]:
    """The continual-learning scores of each reward component, over the domains that have it."""
    names = {name for row in matrix.rows for cell in row.cells.values() for name in cell.components}
    return {name: _component_scores(matrix, name) for name in sorted(names)}


def churn(before: Counts, after: Counts) -> Churn | None:
    """The churn between two cells; None if a task had fewer than two trials before."""
    require_same_tasks(before, after)
    if not before or min(trials for _, trials in before.values()) < 2:
        return None
    pairs = [(c / n, after[task][0] / after[task][1], n) for task, (c, n) in before.items()]
    return Churn(
        lost=fmean(p * (1 - q) for p, q, _ in pairs),
        won=fmean((1 - p) * q for p, q, _ in pairs),
        null=fmean(p * (1 - p) * n / (n - 1) for p, _, n in pairs),
    )


def gain_normalised_forgetting(matrix: RMatrix) -> dict[str, float | None]:
    """The share of its gain that each earlier domain lost; None if the gain is not significant.

    A gain over the untrained policy is significant if it exceeds 1.64 standard errors, paired over
    tasks. It is None too where a mean is not a pass rate, so that the error is unknown.
    """
    last = matrix.rows[-1].after if matrix.rows else BASE
    earlier = matrix.domains[: matrix.domains.index(last)] if last != BASE else ()
    return {domain: _lost_fraction(matrix, domain, last) for domain in earlier}


def _component_scores(matrix: RMatrix, name: str) -> ContinualScores:
    """The scores of one component, without domains that have it in none of their evaluations."""
    judged = {
        domain: any(name in cell.components for cell in cells)
        for domain in matrix.domains
        if (cells := [row.cells[domain] for row in matrix.rows if domain in row.cells])
    }
    table = [
        [
            value if judged.get(domain, True) else NOT_JUDGED
            for domain, value in zip(matrix.domains, row, strict=True)
        ]
        for row in matrix.component(name)
    ]
    scores: Mapping[str, Any] = dict(continual_scores(table))
    known = {key: None if value is None or isnan(value) else value for key, value in scores.items()}
    return cast("ContinualScores", known)


def _lost_fraction(matrix: RMatrix, domain: str, last: str) -> float | None:
    base, learned, final = (matrix.cell(stage, domain) for stage in (BASE, domain, last))
    if base is None or learned is None or final is None or len(base.tasks) < 2:
        return None
    if not (base.is_binary and learned.is_binary):
        return None
    gain = learned.mean - base.mean
    error = task_difference(base.tasks, learned.tasks).standard_error
    return (learned.mean - final.mean) / gain if gain > MIN_GAIN_ERRORS * error else None
