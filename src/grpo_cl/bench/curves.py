"""How the runs of one algorithm learned, averaged over seeds."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from grpo_cl.metrics.curves import evaluation_curve
from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.rundir import RunDir


class Point(NamedTuple):
    """A mean over seeds after some updates."""

    step: int
    value: float


class Learning(NamedTuple):
    """Training reward by step, and each domain's evaluations."""

    training: list[Point]
    evaluations: dict[str, list[Point]]
    stages: list[int]
    """Updates made when each stage ended."""


def learning(roots: Sequence[Path], *, steps_per_task: int) -> Learning | None:
    """The mean curves of finished runs that differ in their seeds only; None without any."""
    if not roots:
        return None
    domains = RMatrix.load(RunDir(roots[0]).r_matrix).domains
    metrics = [RunDir(root).read_metrics() for root in roots]
    rewards = [_rewards(found, len(domains)) for found in metrics]
    training = [
        Point(step, fmean(known))
        for step, values in enumerate(zip_longest(*rewards), 1)
        if (known := [value for value in values if value is not None])
    ]
    return Learning(
        training=training,
        evaluations={domain: _scores(metrics, domain, steps_per_task) for domain in domains},
        stages=[steps_per_task * number for number in range(1, len(domains) + 1)],
    )


def _rewards(metrics: Mapping[str, Sequence[Any]], stages: int) -> list[float | None]:
    return [
        record.get("reward_mean")
        for stage in range(stages)
        for record in metrics.get(f"task_{stage}/train", ())
    ]


def _scores(
    runs: Sequence[Mapping[str, Sequence[Any]]], domain: str, steps_per_task: int
) -> list[Point]:
    found: dict[int, list[float]] = {}
    for metrics in runs:
        for point in evaluation_curve(metrics, domain):
            found.setdefault(point.stage * steps_per_task + point.step, []).append(point.score)
    return [Point(step, fmean(values)) for step, values in sorted(found.items())]
