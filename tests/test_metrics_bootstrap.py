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


def run(learned: Sequence[float], kept: Sequence[float]) -> RMatrix:
    """Two domains; backward transfer is the change on the first."""
    return (
        EMPTY.with_cell("a", "a", cell(learned))
        .with_cell("b", "a", cell(kept))
        .with_cell("b", "b", cell([0.25, 0.5, 0.5, 0.75]))
    )


LEARNED = [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
KEPT = [0.0, 0.5, 0.25, 0.25, 0.5, 1.0]
CHANGES = [after - before for before, after in zip(LEARNED, KEPT, strict=True)]


def test_one_run_has_the_paired_standard_error_over_tasks_and_says_what_it_covers():
    found = bootstrap_interval([run(LEARNED, KEPT)], backward_transfer, rng=Random(0), draws=4000)
    assert found is not None
    assert found.estimate == pytest.approx(sum(CHANGES) / 6)
    assert found.standard_error == pytest.approx(stdev(CHANGES) / sqrt(6), rel=0.04)
    assert (found.seeds, found.tasks, found.degrees) == (1, 10, pytest.approx(5))
    assert (found.method, found.covers) == ("bootstrap over tasks", TASKS_COVERED)


def test_domains_count_by_what_they_add_to_the_noise_of_a_score():
    found = bootstrap_interval([run(LEARNED, KEPT)], average_performance, rng=Random(0))
    assert found is not None
    # Variances of the two means, a quarter of each: .137 / 6 / 4 and .0417 / 4 / 4.
    first, second = variance(KEPT) / 24, variance([0.25, 0.5, 0.5, 0.75]) / 16
    wanted = (first + second) ** 2 / (first**2 / 5 + second**2 / 3)
    assert found.degrees == pytest.approx(wanted, rel=0.1)


def test_rewards_between_0_and_1_have_no_interval_from_successes():
    partial = EMPTY.with_cell("a", "a", Cell(mean=0.5, tasks={"0": (0, 2), "1": (0, 2)}))
    assert bootstrap_interval([partial], average_performance, rng=Random(0)) is None


def test_two_runs_differ_by_the_difference_of_their_paired_changes():
    worse = [max(0.0, rate - 0.25) for rate in KEPT]
    found = bootstrap_interval(
        [run(LEARNED, worse)],
        backward_transfer,
        rng=Random(0),
        baseline=[run(LEARNED, KEPT)],
        draws=4000,
    )
    assert found is not None
    changes = [after - before for before, after in zip(KEPT, worse, strict=True)]
    assert found.estimate == pytest.approx(sum(changes) / 6)
    assert found.standard_error == pytest.approx(stdev(changes) / sqrt(6), rel=0.04)


def test_several_runs_add_the_spread_between_seeds():
    runs = [run(LEARNED, KEPT), run(LEARNED, LEARNED), run(LEARNED, [0.0] * 6)]
    found = bootstrap_interval(runs, backward_transfer, rng=Random(0))
    assert found is not None
    over_seeds = stdev([sum(CHANGES) / 6, 0.0, -3.5 / 6]) / sqrt(3)
    assert found.standard_error > over_seeds
    assert found.degrees is not None
    assert 2 <= found.degrees < 2 + 8
    assert (found.seeds, found.covers) == (3, BOTH_COVERED)


def test_the_same_chance_gives_the_same_interval():
    runs = [run(LEARNED, KEPT), run(LEARNED, LEARNED)]
    first, second = (
        bootstrap_interval(runs, average_performance, rng=Random(7), draws=50) for _ in range(2)
    )
    assert first == second


def test_a_policy_that_did_not_change_has_no_spread():
    found = bootstrap_interval([run(LEARNED, LEARNED)], backward_transfer, rng=Random(0), draws=50)
    assert found is not None
    assert (found.low, found.high, found.p_value) == (0.0, 0.0, None)


def test_a_missing_score_has_no_interval():
    without_last = EMPTY.with_cell("a", "a", cell(LEARNED))
    assert bootstrap_interval([without_last], backward_transfer, rng=Random(0)) is None
    assert bootstrap_interval([], backward_transfer, rng=Random(0)) is None


def test_a_score_that_is_missing_in_some_draws_has_no_interval():
    barely = run([0.0, 0.0, 0.0, 0.0, 0.0, 0.75], KEPT)
    assert retention(barely.scores()) is not None
    assert bootstrap_interval([barely], retention, rng=Random(0)) is None


def test_runs_measured_on_other_tasks_are_refused():
    with pytest.raises(ConfigError, match="evaluate both on the same tasks"):
        bootstrap_interval([run(LEARNED, KEPT[:5])], backward_transfer, rng=Random(0))
    with pytest.raises(ConfigError, match="fewer than two test tasks"):
        bootstrap_interval([run([1.0], [0.5])], backward_transfer, rng=Random(0))


@pytest.mark.slow
@pytest.mark.parametrize(("seed_sd", "task_sd"), [(0.05, 0.0), (0.0, 0.15), (0.05, 0.1)])
def test_three_seeds_cover_what_the_interval_claims(seed_sd: float, task_sd: float):
    """The effect of a stage varies between seeds and between tasks; each task is played 4 times."""
    rng = Random(0)
    repeats, hits = 400, 0
    for _ in range(repeats):
        learned = [0.3 + 0.4 * rng.betavariate(0.5, 0.75) for _ in range(20)]
        effects = [rng.gauss(0, task_sd) for _ in learned]
        runs: list[RMatrix] = []
        for _ in range(3):
            shift = rng.gauss(-0.1, seed_sd)
            kept = [rate + shift + effect for rate, effect in zip(learned, effects, strict=True)]
            runs.append(run(played(learned, rng), played(kept, rng)))
        found = bootstrap_interval(runs, backward_transfer, rng=rng, draws=100)
        assert found is not None
        hits += found.low <= -0.1 <= found.high
    assert 0.92 <= hits / repeats <= 0.985


def played(chances: Sequence[float], rng: Random, trials: int = 4) -> list[float]:
    return [sum(rng.random() < chance for _ in range(trials)) / trials for chance in chances]
