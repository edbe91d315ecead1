import json
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from grpo_cl.metrics.time_left import Schedule, TimeLeft

RECORDED = Path(__file__).parent / "demo_times.jsonl"
"""times.jsonl of a `grpo-cl demo` on two cores that other processes used too."""
DEMO = Schedule(("airline", "retail", "telecom"), 10)


def test_the_estimate_has_the_steps_and_all_evaluations_that_are_left() -> None:
    left = TimeLeft(Schedule(("a", "b"), 3))
    left.add_evaluation("a", 10.0, row=0)
    left.add_evaluation("b", 20.0, row=0)
    assert left.seconds() is None
    left.add_step(0, 1, 2.0)
    assert left.seconds() == 5 * 2.0 + 2 * 10.0 + 2 * 20.0
    for step in (2, 3):
        left.add_step(0, step, 2.0)
    left.add_evaluation("a", 10.0, row=1)
    assert left.seconds() == 3 * 2.0 + 10.0 + 2 * 20.0


def test_evaluations_within_a_stage_are_of_the_domains_seen_so_far() -> None:
    left = TimeLeft(Schedule(("a", "b"), 10, eval_interval=4))
    for domain in ("a", "b"):
        left.add_evaluation(domain, 1.0, row=0)
    left.add_step(0, 1, 0.0)
    # within: a at steps 4 and 8 of both stages, b at steps 4 and 8 of its own; then two rows
    assert left.seconds() == 4 + 2 + 2 * 2
    left.add_step(0, 4, 0.0)
    left.add_evaluation("a", 1.0, row=None)
    assert left.seconds() == 3 + 2 + 2 * 2
    left.add_step(1, 9, 0.0)
    assert left.seconds() == 2 * 2


def test_a_resumed_run_estimates_from_the_times_of_its_earlier_process() -> None:
    left = TimeLeft(DEMO)
    lines = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    for line in lines:
        left.add_line(line)
    assert left.seconds() == 0.0
    left.move_to(2, 5, rows=3)
    steps = [line["lap_s"] for line in lines if line["kind"] == "train" and line["stage"] == 2]
    assert left.seconds() == pytest.approx(5 * sum(steps) / 10 + evaluations(lines) / 4)


def evaluations(lines: list[dict[str, Any]]) -> float:
    return sum(line["lap_s"] for line in lines if line["kind"] == "eval")


def test_lines_of_older_runs_without_wall_times_are_passed_over() -> None:
    left = TimeLeft(DEMO)
    left.add_line({"kind": "eval", "stage": 0, "step": 0, "play_s": 1.0})
    assert left.seconds() is None


def test_the_estimate_is_true_for_the_recorded_times_of_a_run() -> None:
    lines = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    laps = [line["lap_s"] for line in lines]
    total = sum(laps)
    left = TimeLeft(DEMO)
    errors: list[float] = []
    for line, passed in zip(lines, accumulate(laps), strict=True):
        left.add_line(line)
        estimate = left.seconds()
        if estimate is not None:
            errors.append(abs(estimate - (total - passed)) / total)
    assert len(errors) == len(lines) - 3  # from the first step on
    assert max(errors) < 0.2
    assert errors[-1] == 0
