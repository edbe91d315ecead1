"""Straight lines through points, to describe them."""

from collections.abc import Sequence
from statistics import correlation, linear_regression

from grpo_cl.types import Record

FEWEST = 3
"""Points below which a line fits whatever they are."""


class Fit(Record):
    """The line of least squares."""

    slope: float
    intercept: float
    r_squared: float | None
    """Share of the variance of y that the line explains; None where y does not vary."""
    points: int


def least_squares(points: Sequence[tuple[float, float]]) -> Fit | None:
    """The line through pairs of x and y; None for fewer than three, or where x does not vary."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    if len(points) < FEWEST or len(set(xs)) == 1:
        return None
    line = linear_regression(xs, ys)
    is_flat = len(set(ys)) == 1
    return Fit(
        slope=line.slope,
        intercept=line.intercept,
        r_squared=None if is_flat else correlation(xs, ys) ** 2,
        points=len(points),
    )
