from collections.abc import Sequence
from math import sqrt
from random import Random
from statistics import stdev, variance

import pytest

from grpo_cl.errors import ConfigError
from grpo_cl.metrics.bootstrap import bootstrap_interval
from grpo_cl.metrics.continual import average_performance, backward_transfer, retention
from grpo_cl.metrics.rmatrix import Cell, RMatrix
from grpo_cl.metrics.statistics import BOTH_COVERED, TASKS_COVERED

EMPTY = RMatrix(domains=("a", "b"))


def cell(rates: Sequence[float], trials: int = 4) -> Cell:
    tasks = {str(number): (round(rate * trials), trials) for number, rate in enumerate(rates)}
    return Cell(mean=sum(c / n for c, n in tasks.values()) / len(tasks), tasks=tasks)


def run(learned: Sequence[float], final: Sequence[float]) -> RMatrix:
    """A run on two domains; its backward transfer is the change on the first."""
    return (
        EMPTY.with_cell("a", "a", cell(learned))
        .with_cell("b", "a", cell(final))
        .with_cell("b", "b", cell([0.25, 0.5, 0.5, 0.75]))
    )


LEARNED = [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
FINAL = [0.0, 0.5, 0.25, 0.25, 0.5, 1.0]
CHANGES = [after - before for before, after in zip(LEARNED, FINAL, strict=True)]


def test_one_run_has_the_paired_standard_error_over_tasks():
    interval = bootstrap_interval(
        [run(LEARNED, FINAL)], backward_transfer, rng=Random(0), resamples=4000
    )
    assert interval is not None
    assert interval.estimate == pytest.approx(sum(CHANGES) / 6)
    assert interval.standard_error == pytest.approx(stdev(CHANGES) / sqrt(6), rel=0.04)
    assert (interval.seeds, interval.tasks, interval.degrees) == (1, 10, pytest.approx(5))
    assert (interval.method, interval.covers) == ("bootstrap over tasks", TASKS_COVERED)


def test_degrees_of_freedom_of_domains_are_weighted_by_their_variance():
    interval = bootstrap_interval([run(LEARNED, FINAL)], average_performance, rng=Random(0))
    assert interval is not None
    # Variances of the two means, a quarter of each: .137 / 6 / 4 and .0417 / 4 / 4.
    first, second = variance(FINAL) / 24, variance([0.25, 0.5, 0.5, 0.75]) / 16
    expected = (first + second) ** 2 / (first**2 / 5 + second**2 / 3)
    assert interval.degrees == pytest.approx(expected, rel=0.1)


def test_rewards_between_0_and_1_have_no_bootstrap_interval():
    partial = EMPTY.with_cell("a", "a", Cell(mean=0.5, tasks={"0": (0, 2), "1": (0, 2)}))
    assert bootstrap_interval([partial], average_performance, rng=Random(0)) is None


def test_the_difference_of_two_runs_is_paired_over_tasks():
    worse = [max(0.0, rate - 0.25) for rate in FINAL]
    interval = bootstrap_interval(
        [run(LEARNED, worse)],
        backward_transfer,
        rng=Random(0),
        baseline=[run(LEARNED, FINAL)],
        resamples=4000,
    )
    assert interval is not None
    changes = [after - before for before, after in zip(FINAL, worse, strict=True)]
    assert interval.estimate == pytest.approx(sum(changes) / 6)
    assert interval.standard_error == pytest.approx(stdev(changes) / sqrt(6), rel=0.04)


def test_several_runs_add_the_variance_between_seeds():
    runs = [run(LEARNED, FINAL), run(LEARNED, LEARNED), run(LEARNED, [0.0] * 6)]
    interval = bootstrap_interval(runs, backward_transfer, rng=Random(0))
    assert interval is not None
    over_seeds = stdev([sum(CHANGES) / 6, 0.0, -3.5 / 6]) / sqrt(3)
    assert interval.standard_error > over_seeds
    assert interval.degrees is not None
    assert 2 <= interval.degrees < 2 + 8
    assert (interval.seeds, interval.covers) == (3, BOTH_COVERED)


def test_the_same_seed_gives_the_same_interval():
    runs = [run(LEARNED, FINAL), run(LEARNED, LEARNED)]
    first, second = (
        bootstrap_interval(runs, average_performance, rng=Random(7), resamples=50) for _ in range(2)
    )
    assert first == second


def test_an_unchanged_policy_has_zero_variance():
    interval = bootstrap_interval(
        [run(LEARNED, LEARNED)], backward_transfer, rng=Random(0), resamples=50
    )
    assert interval is not None
    assert (interval.low, interval.high, interval.p_value) == (0.0, 0.0, None)


def test_a_missing_score_has_no_interval():
    without_last = EMPTY.with_cell("a", "a", cell(LEARNED))
    assert bootstrap_interval([without_last], backward_transfer, rng=Random(0)) is None
    assert bootstrap_interval([], backward_transfer, rng=Random(0)) is None


def test_a_score_that_is_missing_in_some_resamples_has_no_interval():
    barely = run([0.0, 0.0, 0.0, 0.0, 0.0, 0.75], FINAL)
    assert retention(barely.scores()) is not None
    assert bootstrap_interval([barely], retention, rng=Random(0)) is None


def test_runs_evaluated_on_different_tasks_are_refused():
    with pytest.raises(ConfigError, match="evaluate both on the same tasks"):
        bootstrap_interval([run(LEARNED, FINAL[:5])], backward_transfer, rng=Random(0))
    with pytest.raises(ConfigError, match="fewer than two test tasks"):
        bootstrap_interval([run([1.0], [0.5])], backward_transfer, rng=Random(0))


@pytest.mark.slow
@pytest.mark.parametrize(("seed_sd", "task_sd"), [(0.05, 0.0), (0.0, 0.15), (0.05, 0.1)])
def test_intervals_over_three_seeds_have_their_nominal_coverage(seed_sd: float, task_sd: float):
    """The effect of a stage varies between seeds and between tasks; each task has 4 trials."""
    rng = Random(0)
    repeats, hits = 400, 0
    for _ in range(repeats):
        learned = [0.3 + 0.4 * rng.betavariate(0.5, 0.75) for _ in range(20)]
        effects = [rng.gauss(0, task_sd) for _ in learned]
        runs: list[RMatrix] = []
        for _ in range(3):
            shift = rng.gauss(-0.1, seed_sd)
            final = [rate + shift + effect for rate, effect in zip(learned, effects, strict=True)]
            runs.append(run(simulate_rates(learned, rng), simulate_rates(final, rng)))
        interval = bootstrap_interval(runs, backward_transfer, rng=rng, resamples=100)
        assert interval is not None
        hits += interval.low <= -0.1 <= interval.high
    assert 0.92 <= hits / repeats <= 0.985


def simulate_rates(probabilities: Sequence[float], rng: Random, trials: int = 4) -> list[float]:
    return [
        sum(rng.random() < probability for _ in range(trials)) / trials
        for probability in probabilities
    ]
