from random import Random

import pytest

from grpo_cl.errors import ConfigError
from grpo_cl.metrics.comparisons import compare, score_interval
from grpo_cl.metrics.continual import average_performance, backward_transfer
from grpo_cl.metrics.rmatrix import Cell, RMatrix
from grpo_cl.metrics.statistics import TASKS_COVERED, holm, seed_difference


def run(*successes: int) -> RMatrix:
    """One domain, learned; average performance is the mean of four plays of each task."""
    tasks = {str(number): (count, 4) for number, count in enumerate(successes)}
    cell = Cell(mean=sum(successes) / 4 / len(successes), tasks=tasks)
    return RMatrix(domains=("a",)).with_cell("a", "a", cell)


SEQUENTIAL = [run(0, 0), run(1, 0), run(0, 2)]
REPLAY = [run(4, 3), run(4, 4), run(3, 4)]
EWC = [run(2, 0), run(0, 1), run(4, 0)]


def test_several_seeds_give_an_interval_over_seeds_and_one_seed_over_tasks():
    several = score_interval(REPLAY, average_performance, rng=Random(0))
    assert several is not None
    assert several.estimate == pytest.approx((0.875 + 1 + 0.875) / 3)
    assert (several.seeds, several.tasks, several.method) == (3, 2, "t over seeds")
    one = score_interval(REPLAY[:1], average_performance, rng=Random(0))
    assert one is not None
    assert (one.estimate, one.seeds, one.covers) == (0.875, 1, TASKS_COVERED)


def test_methods_are_compared_with_the_baseline_and_corrected_for_their_number():
    methods = {"sequential": SEQUENTIAL, "replay": REPLAY, "ewc": EWC}
    found = compare(methods, "sequential", average_performance, rng=Random(0))
    assert set(found) == {"replay", "ewc"}
    replay, ewc = found["replay"], found["ewc"]
    assert replay is not None and ewc is not None
    assert replay.difference == seed_difference([0.875, 1, 0.875], [0, 0.125, 0.25], tasks=2)
    assert {"replay": replay.p_holm, "ewc": ewc.p_holm} == holm(
        {"replay": replay.difference.p_value, "ewc": ewc.difference.p_value}
    )
    assert replay.p_holm is not None and replay.p_holm < 0.05


def test_a_method_with_one_seed_is_compared_on_evaluation_noise_and_says_so():
    methods = {"sequential": SEQUENTIAL, "replay": REPLAY[:1]}
    found = compare(methods, "sequential", average_performance, rng=Random(0))["replay"]
    assert found is not None
    assert (found.difference.seeds, found.difference.covers) == (1, TASKS_COVERED)


def test_a_missing_score_is_a_missing_comparison_and_an_unknown_baseline_is_named():
    methods = {"sequential": SEQUENTIAL, "replay": REPLAY}
    assert compare(methods, "sequential", backward_transfer, rng=Random(0)) == {"replay": None}
    assert score_interval(REPLAY, backward_transfer, rng=Random(0)) is None
    assert score_interval([], average_performance, rng=Random(0)) is None
    with pytest.raises(ConfigError, match="'joint' has no runs; methods with runs: sequential, re"):
        compare(methods, "joint", average_performance, rng=Random(0))


def test_runs_on_other_tasks_are_not_compared():
    methods = {"sequential": SEQUENTIAL, "replay": [run(1, 2, 3), run(1, 2, 4)]}
    with pytest.raises(ConfigError, match="same tasks"):
        compare(methods, "sequential", average_performance, rng=Random(0))
