"""The geometry of the charts on a page; templates draw them in the colours of the page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, floor
from statistics import fmean, pstdev
from typing import Any, ClassVar, NamedTuple

from grpo_cl.metrics.curves import evaluation_curve
from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.metrics.statistics import Interval, seed_interval
from grpo_cl.report.intervals import cell_interval

SMOOTHING_SHARE = 0.1
"""Window of the moving mean, as a share of a stage's steps."""
MIN_WINDOW = 3
Metrics = Mapping[str, Sequence[Any]]


class Point(NamedTuple):
    """A mean after this many updates, with the ends of its band if it has one."""

    step: int
    value: float
    low: float | None = None
    high: float | None = None


class StageSpan(NamedTuple):
    """The updates of a stage: from ``start`` on, ``length`` of them."""

    domain: str
    start: int
    length: int


@dataclass(frozen=True)
class ForestPlot:
    """Differences with their confidence intervals, one labelled row each, around zero."""

    rows: Sequence[tuple[str, Interval | None]]
    left: ClassVar = 230
    right: ClassVar = 500
    width: ClassVar = 520
    row_height: ClassVar = 50

    @property
    def height(self) -> int:
        """The height of the rows and the axis."""
        return self.row_height * (len(self.rows) + 1)

    @property
    def reach(self) -> float:
        """The largest absolute value of the axis."""
        intervals = [interval for _, interval in self.rows if interval]
        return max([0.05, *(abs(end) for i in intervals for end in (i.low, i.high))])

    def x(self, value: float) -> float:
        """The horizontal position of a value."""
        half = 1.1 * self.reach
        return self.left + (self.right - self.left) * (value + half) / (2 * half)


@dataclass(frozen=True)
class CurveChart:
    """Training reward by step and the evaluations of each domain."""

    stages: list[StageSpan]
    steps: list[list[Point]]
    """The training reward of every step, by stage; empty if only the mean is drawn."""
    training: list[list[Point]]
    """The smoothed or averaged training reward, by stage."""
    evaluations: dict[str, list[Point]]
    left: ClassVar = 54
    right: ClassVar = 700
    top: ClassVar = 30
    bottom: ClassVar = 262
    width: ClassVar = 720
    height: ClassVar = 300

    @property
    def end(self) -> int:
        """The number of updates of all stages."""
        return max([1, *(stage.start + stage.length for stage in self.stages)])

    @property
    def lines(self) -> dict[str, list[Point]]:
        """The evaluation curves of domains that were evaluated."""
        return {domain: points for domain, points in self.evaluations.items() if points}

    @property
    def limits(self) -> tuple[float, float]:
        """The ends of the axis: 0 and 1, or further where rewards are."""
        points = [p for part in (*self.training, *self.steps) for p in part]
        values = [
            p.value for p in (*points, *(p for part in self.evaluations.values() for p in part))
        ]
        return float(min(0, floor(min(values, default=0)))), float(
            max(1, ceil(max(values, default=1)))
        )

    def x(self, step: int) -> float:
        """The horizontal position of a step."""
        return self.left + (self.right - self.left) * step / self.end

    def y(self, value: float) -> float:
        """The vertical position of a reward; a band is cut off at the ends of the axis."""
        low, high = self.limits
        share = (min(high, max(low, value)) - low) / (high - low)
        return self.bottom - (self.bottom - self.top) * share


def run_chart(metrics: Metrics, matrix: RMatrix) -> CurveChart:
    """The curves of one run.

    The band of the training reward is one standard deviation of the steps in the window to each
    side; the bars of an evaluation are its confidence interval over tasks.
    """
    spans = stage_spans(metrics, matrix.domains)
    steps = [
        [
            Point(span.start + record["step"], record["reward_mean"])
            for record in metrics.get(f"task_{number}/train", ())
            if record.get("reward_mean") is not None
        ]
        for number, span in enumerate(spans)
    ]
    return CurveChart(
        stages=spans,
        steps=steps,
        training=[_smooth(points) for points in steps],
        evaluations={
            domain: _evaluations(metrics, matrix, domain, spans) for domain in matrix.domains
        },
    )


def mean_chart(runs: Sequence[Metrics], domains: Sequence[str]) -> CurveChart:
    """The mean curves of runs that differ only in their seeds; bands are intervals over seeds."""
    spans = stage_spans(runs[0], domains)
    charts = [run_chart(metrics, RMatrix(domains=tuple(domains))) for metrics in runs]
    return CurveChart(
        stages=spans,
        steps=[],
        training=[_over_runs([chart.steps[n] for chart in charts]) for n in range(len(spans))],
        evaluations={
            domain: _over_runs([chart.evaluations[domain] for chart in charts])
            for domain in domains
        },
    )


def stage_spans(metrics: Metrics, domains: Sequence[str]) -> list[StageSpan]:
    """The place of each stage on the axis of steps."""
    lengths = [
        max(
            (
                record["step"] + (kind == "train")
                for kind in ("train", "eval")
                for record in metrics.get(f"task_{number}/{kind}", ())
            ),
            default=0,
        )
        for number in range(len(domains))
    ]
    starts = [0, *accumulate(lengths)][: len(domains)]
    return [StageSpan(*span) for span in zip(domains, starts, lengths, strict=True)]


def _evaluations(
    metrics: Metrics, matrix: RMatrix, domain: str, spans: Sequence[StageSpan]
) -> list[Point]:
    intervals = {
        (max(0, number - 1), spans[max(0, number - 1)].length if number else 0): interval
        for number, after in enumerate(matrix.stages)
        if (cell := matrix.cell(after, domain)) and (interval := cell_interval(cell))
    }
    return [
        Point(
            spans[stage].start + step,
            score,
            *((found.low, found.high) if (found := intervals.get((stage, step))) else ()),
        )
        for stage, step, score in evaluation_curve(metrics, domain)
    ]


def _smooth(points: Sequence[Point]) -> list[Point]:
    """The moving mean over the last steps, and their standard deviation to each side."""
    window = max(MIN_WINDOW, round(SMOOTHING_SHARE * len(points)))
    smoothed: list[Point] = []
    for end, point in enumerate(points, 1):
        values = [one.value for one in points[max(0, end - window) : end]]
        mean, spread = fmean(values), pstdev(values)
        smoothed.append(Point(point.step, mean, mean - spread, mean + spread))
    return smoothed


def _over_runs(curves: Sequence[Sequence[Point]]) -> list[Point]:
    values: dict[int, list[float]] = {}
    for curve in curves:
        for point in curve:
            values.setdefault(point.step, []).append(point.value)
    return [_mean_point(step, known) for step, known in sorted(values.items())]


def _mean_point(step: int, values: Sequence[float]) -> Point:
    if len(values) == 1:
        return Point(step, values[0])
    found = seed_interval(values, tasks=0)
    return Point(step, found.estimate, found.low, found.high)
