from math import comb, sqrt
from random import Random

import pytest

from grpo_cl.errors import ConfigError
from grpo_cl.metrics.statistics import (
    SEEDS_COVERED,
    TASKS_COVERED,
    clopper_pearson,
    holm,
    mean_over_tasks,
    seed_difference,
    seed_interval,
    task_difference,
    task_interval,
    within_variance,
)


def test_the_interval_over_seeds_is_the_t_interval():
    interval = seed_interval([0.1, 0.2, 0.3], tasks=60)
    half = 4.302653 * 0.1 / sqrt(3)
    assert (interval.low, interval.estimate, interval.high) == pytest.approx(
        (0.2 - half, 0.2, 0.2 + half)
    )
    assert (interval.seeds, interval.tasks, interval.degrees) == (3, 60, pytest.approx(2))
    assert (interval.method, interval.covers) == ("t over seeds", SEEDS_COVERED)


def test_one_seed_has_no_interval_over_seeds():
    with pytest.raises(ConfigError, match="train two or more"):
        seed_interval([0.5], tasks=60)


def test_a_difference_with_unequal_variances_has_welchs_degrees_of_freedom():
    interval = seed_difference([0.0, 2.0], [1.0, 5.0], tasks=60)
    assert interval.estimate == -2.0
    assert interval.standard_error == pytest.approx(sqrt(1 + 4))
    assert interval.degrees == pytest.approx(25 / 17)
    assert seed_difference([1.0, 2.0, 3.0], [2.0] * 3, tasks=60).degrees == pytest.approx(2)


def test_the_p_value_is_that_of_the_t_test():
    """A mean of one standard error has p = 1/2 with one degree of freedom (Cauchy)."""
    assert seed_interval([0.0, 2.0], tasks=1).p_value == pytest.approx(0.5)
    at_the_edge = seed_interval([0.1, 0.2, 0.3], tasks=1)
    shifted = [value - at_the_edge.low for value in (0.1, 0.2, 0.3)]
    assert seed_interval(shifted, tasks=1).p_value == pytest.approx(0.05)


def test_zero_variance_gives_a_point_interval_and_no_p_value():
    interval = seed_interval([0.5, 0.5, 0.5], tasks=60)
    assert interval.low == interval.high == 0.5
    assert interval.degrees is None
    assert interval.p_value is None


def test_differences_that_are_equal_but_for_rounding_have_no_p_value():
    rounded = [0.80 - 0.75, 0.60 - 0.55, 0.40 - 0.35]
    assert len(set(rounded)) > 1
    assert seed_interval(rounded, tasks=20).p_value is None
    assert mean_over_tasks(rounded, "t over tasks").p_value is None


def test_the_difference_of_two_cells_is_paired_over_tasks():
    interval = task_difference(
        {"a": (1, 4), "b": (2, 4), "c": (4, 4)}, {"c": (3, 4), "b": (2, 4), "a": (3, 4)}
    )
    assert interval.estimate == pytest.approx(0.25 / 3)
    assert interval.standard_error == pytest.approx(sqrt(0.2916667 / 2 / 3), abs=1e-6)
    assert (interval.seeds, interval.tasks, interval.degrees) == (1, 3, pytest.approx(2))


def test_pairing_removes_the_variance_of_task_difficulty():
    easy_and_hard = {str(i): (4 * (i % 2), 4) for i in range(20)}
    a_little_worse = {task: (max(0, c - 1), n) for task, (c, n) in easy_and_hard.items()}
    paired = task_difference(easy_and_hard, a_little_worse).standard_error
    apart = task_interval(easy_and_hard).standard_error
    assert paired == pytest.approx(sqrt(20 * 0.125**2 / 19 / 20))
    assert apart == pytest.approx(sqrt(20 * 0.5**2 / 19 / 20))


def test_an_interval_over_tasks_covers_evaluation_noise_only():
    assert task_interval({"a": (1, 2), "b": (2, 2)}).covers == TASKS_COVERED
    assert "evaluation noise only" in TASKS_COVERED


def test_cells_of_different_tasks_and_of_one_task_are_refused():
    with pytest.raises(ConfigError, match=r"1 task\(s\) were evaluated on one side only \('b'"):
        task_difference({"a": (1, 2)}, {"a": (1, 2), "b": (1, 2)})
    with pytest.raises(ConfigError, match="two or more"):
        task_interval({"a": (1, 2)})


def test_the_effect_of_a_seed_has_the_degrees_of_freedom_of_the_seeds():
    """Rows 0 2, 1 5 and 2 2: column means 1 and 3, so 6 between columns and a residual of 2."""
    rows = [[0.0, 2.0], [1.0, 5.0], [2.0, 2.0]]
    apart, together = within_variance(rows), within_variance([], block=rows)
    assert (apart.variance, apart.degrees) == pytest.approx(((2 + 8 + 0) / 3, 3))
    assert together.variance == pytest.approx(apart.variance)
    # Shares 6/3 with one degree and 4/3 with two.
    assert together.degrees == pytest.approx((10 / 3) ** 2 / (2**2 + (4 / 3) ** 2 / 2))


def test_holm_multiplies_by_the_remaining_hypotheses_and_is_monotone():
    assert holm({"a": 0.04, "b": 0.01, "c": 0.03}) == pytest.approx(
        {"a": 0.06, "b": 0.03, "c": 0.06}
    )
    assert holm({"a": 0.7, "b": 0.6}) == {"a": 1.0, "b": 1.0}


def test_a_missing_p_value_counts_as_a_comparison():
    assert holm({"a": 0.01, "b": None}) == {"a": pytest.approx(0.02), "b": None}


def test_intervals_over_three_seeds_have_their_nominal_coverage():
    """Scores of 20 tasks with 4 trials each, a normal seed effect of 0.05."""
    rng = Random(0)
    probabilities = [rng.betavariate(2, 3) * 0.6 + 0.2 for _ in range(20)]
    truth = sum(probabilities) / 20
    repeats, hits = 800, 0
    for _ in range(repeats):
        scores: list[float] = []
        for _ in range(3):
            effect = rng.gauss(0, 0.05)
            trials = [
                rng.random() < probability + effect
                for probability in probabilities
                for _ in range(4)
            ]
            scores.append(sum(trials) / 80)
        interval = seed_interval(scores, tasks=20)
        hits += interval.low <= truth <= interval.high
    assert 0.92 <= hits / repeats <= 0.98


def test_equal_methods_differ_significantly_at_the_nominal_rate():
    rng = Random(0)
    repeats, rejections = 1500, 0
    for _ in range(repeats):
        runs = [[rng.gauss(0.5, 0.03) for _ in range(3)] for _ in range(2)]
        p_value = seed_difference(*runs, tasks=20).p_value
        rejections += p_value is not None and p_value < 0.05
    assert 0.02 <= rejections / repeats <= 0.06


def test_the_exact_interval_of_few_successes_equals_published_values():
    """Clopper and Pearson: 0 of 16 gives 1 - 0.025^(1/16), 1 of 10 gives 0.0025 to 0.445."""
    none = task_interval({str(i): (0, 1) for i in range(16)})
    assert (none.estimate, none.low) == (0.0, 0.0)
    assert none.high == pytest.approx(1 - 0.025 ** (1 / 16))
    one = task_interval({str(i): (int(i == 0), 1) for i in range(10)})
    assert (one.low, one.high) == pytest.approx((0.00253, 0.44502), abs=1e-5)


def test_the_exact_interval_covers_a_small_probability_of_16_tasks():
    """By enumeration over all outcomes; the t interval covers 63 %."""
    count, probability = 16, 0.06
    exact = approximate = 0.0
    for successes in range(count + 1):
        weight = comb(count, successes) * probability**successes
        weight *= (1 - probability) ** (count - successes)
        rates = [float(i < successes) for i in range(count)]
        found = task_interval({str(i): (int(rate), 1) for i, rate in enumerate(rates)})
        exact += weight * (found.low <= probability <= found.high)
        t_over_tasks = mean_over_tasks(rates, "t over tasks")
        approximate += weight * (t_over_tasks.low <= probability <= t_over_tasks.high)
    assert approximate == pytest.approx(0.63, abs=0.01)
    assert exact >= 0.95


def test_trials_of_one_task_count_less_than_trials_of_other_tasks():
    """Two tasks that always succeed and two that never do say as much as four trials."""
    extreme = task_interval({"a": (8, 8), "b": (8, 8), "c": (0, 8), "d": (0, 8)})
    assert (extreme.low, extreme.high) == pytest.approx(clopper_pearson(0.5, 4))
    independent = task_interval({str(i): (i % 2, 1) for i in range(32)})
    assert extreme.high > independent.high


def test_the_exact_interval_covers_correlated_trials():
    """Twelve tasks of probability Beta(0.1, 0.9), four trials of each."""
    rng, hits, repeats = Random(0), 0, 300
    for _ in range(repeats):
        rates = [rng.betavariate(0.1, 0.9) for _ in range(12)]
        counts = {
            str(i): (sum(rng.random() < rate for _ in range(4)), 4) for i, rate in enumerate(rates)
        }
        found = task_interval(counts)
        hits += found.low <= 0.1 <= found.high
    assert hits / repeats >= 0.93
