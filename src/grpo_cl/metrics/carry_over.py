"""How far scores on one set of tasks follow scores on another: generated tasks and a benchmark's.

Both matrices are of the same run, so that their cells are pairs. Formulas: docs/metrics.md.
"""

from statistics import correlation, fmean
from typing import NamedTuple

from grpo_cl.errors import ConfigError
from grpo_cl.metrics.rmatrix import RMatrix

MIN_PAIRS = 3
"""Any two pairs lie on a line."""


class CarryOver(NamedTuple):
    """Scores of one run on its own evaluation tasks and on others."""

    gaps: dict[str, float]
    """Mean over stages of the run's score minus the score on the other tasks, by domain."""
    correlation: float | None
    """Pearson's correlation of the two scores around their domain's means: whether both move
    together in training. None with fewer than ``MIN_PAIRS`` pairs, or if one does not move."""
    pairs: int
    """Cells that both matrices have."""


def carry_over(own: RMatrix, other: RMatrix) -> CarryOver:
    """Compare the R-matrices of one run on two sets of tasks."""
    if own.domains != other.domains:
        raise ConfigError(
            f"R-matrices of {', '.join(own.domains)} and of {', '.join(other.domains)} have no "
            "cells in common; evaluate the same domains in the same order"
        )
    gaps: dict[str, float] = {}
    moves: list[tuple[float, float]] = []
    for domain in own.domains:
        found = [(own.cell(row.after, domain), other.cell(row.after, domain)) for row in own.rows]
        pairs = [(first.mean, second.mean) for first, second in found if first and second]
        if not pairs:
            continue
        centre = fmean(pair[0] for pair in pairs), fmean(pair[1] for pair in pairs)
        gaps[domain] = centre[0] - centre[1]
        moves += [(first - centre[0], second - centre[1]) for first, second in pairs]
    return CarryOver(gaps, _correlation(moves), len(moves))


def _correlation(moves: list[tuple[float, float]]) -> float | None:
    columns = [list(column) for column in zip(*moves, strict=True)]
    if len(moves) < MIN_PAIRS or not all(any(column) for column in columns):
        return None
    return correlation(*columns)
