"""What was forgotten: the scores by component, by reliability, and task by task."""

from collections.abc import Callable
from statistics import fmean
from typing import NamedTuple

from grpo_cl.metrics.continual import (
    ContinualScores,
    Counts,
    continual_scores,
    pass_at_k,
    pass_hat_k,
)
from grpo_cl.metrics.rmatrix import BASE, Cell, RMatrix
from grpo_cl.metrics.statistics import require_same_tasks, task_difference

GATE = 1.64
"""Standard errors a gain must exceed to count as learned: a one-sided test at 5 %."""


class Churn(NamedTuple):
    """How tasks changed sides between two cells, beyond what replaying them alone would do."""

    lost: float
    """Chance that a play before succeeds and one after fails."""
    won: float
    """Chance that a play before fails and one after succeeds."""
    null: float
    """Either chance if nothing had changed."""

    @property
    def excess_lost(self) -> float:
        """What was lost beyond chance."""
        return self.lost - self.null

    @property
    def excess_won(self) -> float:
        """What was won beyond chance."""
        return self.won - self.null


def component_scores(matrix: RMatrix) -> dict[str, ContinualScores]:
    """The continual scores of each component that any cell has, by name."""
    names = {name for row in matrix.rows for cell in row.cells.values() for name in cell.components}
    return {name: continual_scores(matrix.component(name)) for name in sorted(names)}


def pass_hat_scores(matrix: RMatrix, k: int) -> list[list[float | None]]:
    """pass^k of every cell, laid out as ``RMatrix.scores``."""
    return _table(matrix, lambda cell: pass_hat_k(cell.tasks, k))


def pass_at_scores(matrix: RMatrix, k: int) -> list[list[float | None]]:
    """pass@k of every cell, laid out as ``RMatrix.scores``."""
    return _table(matrix, lambda cell: pass_at_k(cell.tasks, k))


def churn(before: Counts, after: Counts) -> Churn | None:
    """How tasks changed sides between two cells; None if one was played only once before."""
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
    """The share of its gain that each earlier domain lost; None where nothing was learned.

    A domain was learned if its gain over the untrained policy exceeds 1.64 standard errors of the
    gain, tasks paired; where the successes do not tell the gain, that is not known.
    """
    last = matrix.rows[-1].after if matrix.rows else BASE
    earlier = matrix.domains[: matrix.domains.index(last)] if last != BASE else ()
    return {domain: _lost_share(matrix, domain, last) for domain in earlier}


def _lost_share(matrix: RMatrix, domain: str, last: str) -> float | None:
    base, learned, kept = (matrix.cell(stage, domain) for stage in (BASE, domain, last))
    if base is None or learned is None or kept is None or len(base.tasks) < 2:
        return None
    if not (base.is_counted and learned.is_counted):
        return None
    gain = learned.mean - base.mean
    noise = task_difference(base.tasks, learned.tasks).standard_error
    return (learned.mean - kept.mean) / gain if gain > GATE * noise else None


def _table(matrix: RMatrix, value: Callable[[Cell], float | None]) -> list[list[float | None]]:
    stages = [BASE, *matrix.domains][: len(matrix.scores())]
    cells = [[matrix.cell(stage, domain) for domain in matrix.domains] for stage in stages]
    return [[None if cell is None else value(cell) for cell in row] for row in cells]
