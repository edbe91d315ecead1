from typing import Any

import pytest

from grpo_cl.metrics.curves import (
    EvaluationPoint,
    area_under_curve,
    continual_world_transfer,
    evaluation_curve,
    learning_curve,
    lowest_score,
    stability_gap,
    worst_case_performance,
)


def curve(*points: tuple[int, int, float]) -> list[EvaluationPoint]:
    return [EvaluationPoint(*point) for point in points]


FIRST = curve((0, 0, 0.2), (0, 5, 0.6), (0, 10, 0.8), (1, 5, 0.3), (1, 10, 0.7))
"""A domain learned in stage 0 whose score drops within stage 1."""


def evaluation(stage: int, step: int, domain: str, score: float) -> dict[str, Any]:
    return {"task_idx": stage, "step": step, "domain": domain, "reward_mean": score}


def test_a_curve_is_read_from_the_metrics_of_a_run():
    metrics = {
        "task_1/eval": [evaluation(1, 10, "retail", 0.9), evaluation(1, 10, "airline", 0.4)],
        "task_0/eval": [
            evaluation(0, 0, "airline", 0.1),
            evaluation(0, 10, "airline", 0.5),
            evaluation(0, 10, "airline", 0.6),
        ],
        "task_0/train": [{"task_idx": 0, "step": 1, "reward_mean": 1.0}],
    }
    assert evaluation_curve(metrics, "airline") == curve((0, 0, 0.1), (0, 10, 0.6), (1, 10, 0.4))


def test_the_learning_curve_of_a_stage_starts_with_the_previous_evaluation():
    assert learning_curve(FIRST, 1) == curve((1, 0, 0.8), (1, 5, 0.3), (1, 10, 0.7))
    assert learning_curve(FIRST, 0) == FIRST[:3]
    assert learning_curve(FIRST, 2) == []


def test_the_area_under_the_curve_is_its_mean_height():
    assert area_under_curve(FIRST[:3]) == pytest.approx((5 * 0.4 + 5 * 0.7) / 10)
    assert area_under_curve(curve((0, 0, 0.5), (0, 2, 0.5), (0, 10, 0.5))) == pytest.approx(0.5)
    assert area_under_curve(FIRST[:1]) is None


def test_faster_learning_than_the_reference_is_positive_transfer():
    alone = curve((0, 0, 0.2), (0, 5, 0.4), (0, 10, 0.8))
    assert continual_world_transfer(FIRST[:3], alone) == pytest.approx((0.55 - 0.45) / 0.55)
    assert continual_world_transfer(alone, FIRST[:3]) == pytest.approx((0.45 - 0.55) / 0.45)
    assert continual_world_transfer(alone, alone) == 0.0


def test_transfer_is_missing_with_a_perfect_reference():
    perfect = curve((0, 0, 1.0), (0, 10, 1.0))
    assert continual_world_transfer(curve((0, 0, 0.5), (0, 10, 0.5)), perfect) is None
    assert continual_world_transfer([], []) is None


def test_curves_evaluated_at_different_steps_are_refused():
    with pytest.raises(ValueError, match="eval_interval"):
        continual_world_transfer(FIRST[:3], FIRST[:2])


def test_the_stability_gap_includes_dips_within_a_stage():
    assert stability_gap(FIRST, 0) == pytest.approx(0.5)
    assert lowest_score(FIRST, 0) == 0.3


def test_the_stability_gap_is_missing_without_evaluations_within_stages():
    rows = curve((0, 0, 0.2), (0, 10, 0.8), (1, 10, 0.7), (2, 10, 0.6))
    assert stability_gap(rows, 0) is None
    assert stability_gap(FIRST, 1) is None


def test_worst_case_performance_averages_the_minima_of_old_domains_and_the_last_score():
    last = curve((0, 10, 0.1), (1, 5, 0.4), (1, 10, 0.9))
    assert worst_case_performance([FIRST, last]) == pytest.approx((0.3 + 0.9) / 2)
    assert worst_case_performance([FIRST]) is None
    assert worst_case_performance([FIRST[:3], last]) is None
    assert worst_case_performance([FIRST, last[:1]]) is None
