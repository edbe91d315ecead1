"""Scores of learning curves, which need evaluations within stages. Formulas: docs/metrics.md."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from grpo_cl.metrics.continual import mean_or_none


class EvaluationPoint(NamedTuple):
    """One evaluation of a domain, after ``step`` updates of a stage; stages count from 0."""

    stage: int
    step: int
    score: float


def evaluation_curve(metrics: Mapping[str, Sequence[Any]], domain: str) -> list[EvaluationPoint]:
    """Every evaluation of a domain in ``metrics.json``, in order; only the last one of a step."""
    scores: dict[tuple[int, int], float] = {}
    for name, records in metrics.items():
        if name.startswith("task_") and name.endswith("/eval"):
            for record in records:
                if record["domain"] == domain:
                    scores[record["task_idx"], record["step"]] = record["reward_mean"]
    return [EvaluationPoint(stage, step, score) for (stage, step), score in sorted(scores.items())]


def learning_curve(curve: Sequence[EvaluationPoint], stage: int) -> list[EvaluationPoint]:
    """The evaluations of one stage; the last one before it becomes its step 0."""
    within = [point for point in curve if point.stage == stage]
    earlier = [point for point in curve if point.stage < stage]
    if within and within[0].step > 0 and earlier:
        return [EvaluationPoint(stage, 0, earlier[-1].score), *within]
    return within


def area_under_curve(curve: Sequence[EvaluationPoint]) -> float | None:
    """Mean height of a learning curve by the trapezoidal rule; None for fewer than two points."""
    if len(curve) < 2:
        return None
    areas = [
        (right.step - left.step) * (left.score + right.score) / 2 for left, right in pairwise(curve)
    ]
    return sum(areas) / (curve[-1].step - curve[0].step)


def continual_world_transfer(
    curve: Sequence[EvaluationPoint], reference: Sequence[EvaluationPoint]
) -> float | None:
    """Forward transfer of Continual World, from two results of ``learning_curve``.

    ``reference`` is the curve of a run on that domain alone. None if a curve has fewer than two
    points or the reference is perfect.
    """
    steps, reference_steps = [p.step for p in curve], [p.step for p in reference]
    if steps != reference_steps:
        raise ValueError(
            f"curves evaluated at steps {steps} and {reference_steps} cannot be compared; "
            "use the same eval_interval and number of steps"
        )
    learned, alone = area_under_curve(curve), area_under_curve(reference)
    if learned is None or alone is None or alone >= 1:
        return None
    return (learned - alone) / (1 - alone)


def stability_gap(curve: Sequence[EvaluationPoint], stage: int) -> float | None:
    """The largest drop below a domain's score at the end of ``stage``, in which it was learned.

    None unless the domain was evaluated within a later stage.
    """
    learned = [point for point in curve if point.stage == stage]
    lowest = lowest_score(curve, stage)
    return None if lowest is None or not learned else learned[-1].score - lowest


def lowest_score(curve: Sequence[EvaluationPoint], stage: int) -> float | None:
    """A domain's lowest score after ``stage``; None unless evaluated within a later stage."""
    later = [point for point in curve if point.stage > stage]
    last_steps = {point.stage: point.step for point in later}
    is_within_stage = any(point.step < last_steps[point.stage] for point in later)
    return min(point.score for point in later) if is_within_stage else None


def curve_scores(
    metrics: Mapping[str, Sequence[Any]], domains: Sequence[str]
) -> dict[str, float | None]:
    """The mean stability gap over earlier domains, and the worst-case performance."""
    curves = [evaluation_curve(metrics, domain) for domain in domains]
    gaps = [stability_gap(curve, stage) for stage, curve in enumerate(curves[:-1])]
    return {
        "stability_gap": mean_or_none(gaps),
        "worst_case_performance": worst_case_performance(curves),
    }


def worst_case_performance(curves: Sequence[Sequence[EvaluationPoint]]) -> float | None:
    """Mean over domains of the lowest score of earlier ones and the last score of the newest.

    ``curves[j]`` is of the domain learned in stage j.
    """
    if len(curves) < 2 or not curves[-1] or curves[-1][-1].stage != len(curves) - 1:
        return None
    lowest = [lowest_score(curve, stage) for stage, curve in enumerate(curves[:-1])]
    return mean_or_none([*lowest, curves[-1][-1].score])
