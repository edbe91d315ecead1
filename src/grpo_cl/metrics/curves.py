"""Scores that need evaluations within stages, not only after them. Formulas: docs/metrics.md."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple


class Point(NamedTuple):
    """One evaluation of a domain: after ``step`` updates of a stage, stages counted from 0."""

    stage: int
    step: int
    score: float


def evaluation_curve(metrics: Mapping[str, Sequence[Any]], domain: str) -> list[Point]:
    """Every evaluation of a domain in ``metrics.json``, in order; the last of a step counts."""
    found: dict[tuple[int, int], float] = {}
    for name, records in metrics.items():
        if name.startswith("task_") and name.endswith("/eval"):
            for record in records:
                if record["domain"] == domain:
                    found[record["task_idx"], record["step"]] = record["reward_mean"]
    return [Point(stage, step, score) for (stage, step), score in sorted(found.items())]


def learning_curve(curve: Sequence[Point], stage: int) -> list[Point]:
    """The evaluations of one stage; what was measured just before it becomes its step 0."""
    within = [point for point in curve if point.stage == stage]
    earlier = [point for point in curve if point.stage < stage]
    if within and within[0].step > 0 and earlier:
        return [Point(stage, 0, earlier[-1].score), *within]
    return within


def area_under_curve(curve: Sequence[Point]) -> float | None:
    """Mean height of a learning curve by the trapezoid rule; None for fewer than two points."""
    if len(curve) < 2:
        return None
    pieces = [
        (right.step - left.step) * (left.score + right.score) / 2 for left, right in pairwise(curve)
    ]
    return sum(pieces) / (curve[-1].step - curve[0].step)


def continual_world_transfer(curve: Sequence[Point], reference: Sequence[Point]) -> float | None:
    """How much faster a domain was learned than alone, from curves that ``learning_curve`` gives.

    None where a curve is too short or the reference leaves no room to be better.
    """
    steps, reference_steps = [p.step for p in curve], [p.step for p in reference]
    if steps != reference_steps:
        raise ValueError(
            f"curves measured at {steps} and {reference_steps} cannot be compared; "
            "use one eval_interval and one number of steps"
        )
    learned, alone = area_under_curve(curve), area_under_curve(reference)
    if learned is None or alone is None or alone >= 1:
        return None
    return (learned - alone) / (1 - alone)


def stability_gap(curve: Sequence[Point], stage: int) -> float | None:
    """The deepest drop below a domain's score at the end of ``stage``, in which it was learned.

    None unless the domain was measured within a later stage.
    """
    learned = [point for point in curve if point.stage == stage]
    lowest = lowest_score(curve, stage)
    return None if lowest is None or not learned else learned[-1].score - lowest


def lowest_score(curve: Sequence[Point], stage: int) -> float | None:
    """A domain's least score after ``stage``; None unless it was measured within a later stage."""
    later = [point for point in curve if point.stage > stage]
    last_steps = {point.stage: point.step for point in later}
    is_watched = any(point.step < last_steps[point.stage] for point in later)
    return min(point.score for point in later) if is_watched else None


def curve_scores(
    metrics: Mapping[str, Sequence[Any]], domains: Sequence[str]
) -> dict[str, float | None]:
    """The mean stability gap of earlier domains and the worst case, of the ``domains`` learned."""
    curves = [evaluation_curve(metrics, domain) for domain in domains]
    gaps = [stability_gap(curve, stage) for stage, curve in enumerate(curves[:-1])]
    known = [gap for gap in gaps if gap is not None]
    return {
        "stability_gap": fmean(known) if known and len(known) == len(gaps) else None,
        "worst_case_performance": worst_case_performance(curves),
    }


def worst_case_performance(curves: Sequence[Sequence[Point]]) -> float | None:
    """Least score of each earlier domain and last score of the newest, all domains weighing alike.

    ``curves[j]`` belongs to the domain learned in stage j.
    """
    if len(curves) < 2 or not curves[-1] or curves[-1][-1].stage != len(curves) - 1:
        return None
    lowest = [lowest_score(curve, stage) for stage, curve in enumerate(curves[:-1])]
    known = [score for score in lowest if score is not None]
    if len(known) < len(lowest):
        return None
    return fmean([*known, curves[-1][-1].score])
