from math import sqrt
from random import Random

import pytest

from grpo_cl.errors import ConfigError
from grpo_cl.metrics.statistics import (
    SEEDS_COVERED,
    TASKS_COVERED,
    holm,
    seed_difference,
    seed_interval,
    task_difference,
    task_interval,
)


def test_the_interval_over_seeds_is_the_t_interval():
    found = seed_interval([0.1, 0.2, 0.3], tasks=60)
    half = 4.302653 * 0.1 / sqrt(3)
    assert (found.low, found.estimate, found.high) == pytest.approx((0.2 - half, 0.2, 0.2 + half))
    assert (found.seeds, found.tasks, found.degrees) == (3, 60, pytest.approx(2))
    assert (found.method, found.covers) == ("t over seeds", SEEDS_COVERED)


def test_one_seed_has_no_interval_over_seeds():
    with pytest.raises(ConfigError, match="two are the least"):
        seed_interval([0.5], tasks=60)


def test_a_difference_of_unequal_spreads_has_welchs_degrees_of_freedom():
    found = seed_difference([0.0, 2.0], [1.0, 5.0], tasks=60)
    assert found.estimate == -2.0
    assert found.standard_error == pytest.approx(sqrt(1 + 4))
    assert found.degrees == pytest.approx(25 / 17)
    assert seed_difference([1.0, 2.0, 3.0], [2.0] * 3, tasks=60).degrees == pytest.approx(2)


def test_the_p_value_is_that_of_the_t_test():
    """A mean of one standard error has p = 1/2 with one degree of freedom (Cauchy)."""
    assert seed_interval([0.0, 2.0], tasks=1).p_value == pytest.approx(0.5)
    at_the_edge = seed_interval([0.1, 0.2, 0.3], tasks=1)
    shifted = [value - at_the_edge.low for value in (0.1, 0.2, 0.3)]
    assert seed_interval(shifted, tasks=1).p_value == pytest.approx(0.05)


def test_values_without_spread_have_a_point_and_no_p_value():
    found = seed_interval([0.5, 0.5, 0.5], tasks=60)
    assert found.low == found.high == 0.5
    assert found.degrees is None
    assert found.p_value is None


def test_tasks_are_compared_with_themselves():
    found = task_difference(
        {"a": (1, 4), "b": (2, 4), "c": (4, 4)}, {"c": (3, 4), "b": (2, 4), "a": (3, 4)}
    )
    assert found.estimate == pytest.approx(0.25 / 3)
    assert found.standard_error == pytest.approx(sqrt(0.2916667 / 2 / 3), abs=1e-6)
    assert (found.seeds, found.tasks, found.degrees) == (1, 3, pytest.approx(2))


def test_pairing_takes_the_difficulty_of_tasks_out_of_a_difference():
    easy_and_hard = {str(i): (4 * (i % 2), 4) for i in range(20)}
    a_little_worse = {task: (max(0, c - 1), n) for task, (c, n) in easy_and_hard.items()}
    paired = task_difference(easy_and_hard, a_little_worse).standard_error
    apart = task_interval(easy_and_hard).standard_error
    assert paired == pytest.approx(sqrt(20 * 0.125**2 / 19 / 20))
    assert apart == pytest.approx(sqrt(20 * 0.5**2 / 19 / 20))


def test_an_interval_of_one_run_says_that_it_covers_evaluation_noise_only():
    assert task_interval({"a": (1, 2), "b": (2, 2)}).covers == TASKS_COVERED
    assert "evaluation noise only" in TASKS_COVERED


def test_cells_of_other_tasks_and_of_one_task_are_refused():
    with pytest.raises(ConfigError, match=r"1 task\(s\) were measured on one side only \('b'"):
        task_difference({"a": (1, 2)}, {"a": (1, 2), "b": (1, 2)})
    with pytest.raises(ConfigError, match="two or more"):
        task_interval({"a": (1, 2)})


def test_holm_multiplies_by_the_hypotheses_left_and_never_falls():
    assert holm({"a": 0.04, "b": 0.01, "c": 0.03}) == pytest.approx(
        {"a": 0.06, "b": 0.03, "c": 0.06}
    )
    assert holm({"a": 0.7, "b": 0.6}) == {"a": 1.0, "b": 1.0}


def test_a_missing_p_value_still_counts_as_a_comparison():
    assert holm({"a": 0.01, "b": None}) == {"a": pytest.approx(0.02), "b": None}


def test_the_interval_over_three_seeds_covers_what_it_claims():
    """Scores of 20 tasks with 4 plays each, a normal seed effect of 0.05."""
    rng = Random(0)
    chances = [rng.betavariate(2, 3) * 0.6 + 0.2 for _ in range(20)]
    truth = sum(chances) / 20
    repeats, hits = 800, 0
    for _ in range(repeats):
        scores: list[float] = []
        for _ in range(3):
            effect = rng.gauss(0, 0.05)
            plays = [rng.random() < chance + effect for chance in chances for _ in range(4)]
            scores.append(sum(plays) / 80)
        found = seed_interval(scores, tasks=20)
        hits += found.low <= truth <= found.high
    assert 0.92 <= hits / repeats <= 0.98


def test_a_difference_of_equal_methods_is_rarely_found():
    rng = Random(0)
    repeats, found = 1500, 0
    for _ in range(repeats):
        runs = [[rng.gauss(0.5, 0.03) for _ in range(3)] for _ in range(2)]
        p_value = seed_difference(*runs, tasks=20).p_value
        found += p_value is not None and p_value < 0.05
    assert 0.02 <= found / repeats <= 0.06
