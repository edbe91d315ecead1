"""How the runs of one algorithm learned, averaged over seeds."""

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from grpo_cl.metrics.rmatrix import BASE, RMatrix
from grpo_cl.rundir import RunDir


class Point(NamedTuple):
    """A mean over seeds after some updates."""

    step: int
    value: float


class Learning(NamedTuple):
    """Training reward by step, and each domain's score at the ends of stages."""

    training: list[Point]
    evaluations: dict[str, list[Point]]
    stages: list[int]
    """Updates made when each stage ended."""


def learning(roots: Sequence[Path], *, steps_per_task: int) -> Learning | None:
    """The mean curves of finished runs that differ in their seeds only; None without any."""
    if not roots:
        return None
    matrices = [RMatrix.load(RunDir(root).r_matrix) for root in roots]
    domains = matrices[0].domains
    rewards = [_rewards(root, len(domains)) for root in roots]
    training = [
        Point(step, fmean(known))
        for step, values in enumerate(zip_longest(*rewards), 1)
        if (known := [value for value in values if value is not None])
    ]
    ends = [steps_per_task * number for number in range(len(domains) + 1)]
    return Learning(
        training=training,
        evaluations={domain: _scores(matrices, domain, ends) for domain in domains},
        stages=ends[1:],
    )


def _rewards(root: Path, stages: int) -> list[float | None]:
    metrics = RunDir(root).read_metrics()
    return [
        record.get("reward_mean")
        for stage in range(stages)
        for record in metrics.get(f"task_{stage}/train", ())
    ]


def _scores(matrices: Sequence[RMatrix], domain: str, ends: Sequence[int]) -> list[Point]:
    points: list[Point] = []
    for step, after in zip(ends, (BASE, *matrices[0].domains), strict=True):
        cells = [matrix.cell(after, domain) for matrix in matrices]
        known = [cell.mean for cell in cells if cell is not None]
        if known:
            points.append(Point(step, fmean(known)))
    return points
