from math import exp, log, sqrt
from random import Random

import pytest

from grpo_cl.metrics.rmatrix import Cell
from grpo_cl.metrics.statistics import TASKS_COVERED, clopper_pearson, task_interval
from grpo_cl.report.intervals import component_change, component_interval, pass_hat_interval

T_2 = 4.302653
"""The 97.5 % quantile of the t distribution with two degrees of freedom."""


def cell(name: str, *values: float) -> Cell:
    """Two trials of each task, with these means of a component."""
    tasks = {str(index): (0, 2) for index in range(len(values))}
    by_task = dict(zip(tasks, values, strict=True))
    mean = sum(values) / len(values)
    return Cell(mean=0.0, tasks=tasks, components={name: mean}, component_tasks={name: by_task})


def test_a_component_has_the_exact_interval_of_a_pass_rate_over_its_tasks():
    same = component_interval(cell("DB", 1.0, 1.0, 1.0), "DB")
    assert same is not None
    assert (same.low, same.high) == clopper_pearson(1.0, 3)
    mixed = component_interval(cell("DB", 0.0, 0.5, 1.0), "DB")
    assert mixed is not None
    assert (mixed.estimate, mixed.tasks, mixed.covers) == (0.5, 3, TASKS_COVERED)
    # Tasks that differ fully say as much as three trials.
    assert (mixed.low, mixed.high) == pytest.approx(clopper_pearson(0.5, 3))


def test_a_component_below_zero_has_the_t_interval_over_tasks():
    found = component_interval(cell("COMPRESSION", -1.0, 0.0, 1.0), "COMPRESSION")
    assert found is not None
    assert (found.low, found.high) == pytest.approx((-T_2 / sqrt(3), T_2 / sqrt(3)), abs=1e-6)


def test_a_change_of_a_component_is_paired_over_tasks():
    found = component_change(cell("DB", 1.0, 1.0, 0.5), cell("DB", 0.5, 1.0, 0.5), "DB")
    assert found is not None
    assert found.estimate == pytest.approx(-0.5 / 3)
    assert found.standard_error == pytest.approx(0.5 / 3)  # variance 1/12 of three changes
    assert found.degrees == pytest.approx(2)


def test_a_component_of_one_task_or_of_other_tasks_has_no_interval():
    one, two, three = cell("DB", 1.0), cell("DB", 1.0, 0.0), cell("DB", 1.0, 0.0, 0.0)
    assert component_interval(one, "DB") is None
    assert component_interval(two, "ACTION") is None
    assert component_change(one, one, "DB") is None
    assert component_change(two, three, "DB") is None


def test_pass_hat_k_has_the_exact_interval_of_a_pass_rate_over_its_tasks():
    few = {str(index): (2 if index else 4, 4) for index in range(16)}
    assert pass_hat_interval(few, 1) == task_interval(few)
    none = pass_hat_interval({str(index): (2, 4) for index in range(16)}, 4)
    assert none is not None
    assert (none.low, none.high) == pytest.approx((0.0, 1 - 0.025 ** (1 / 16)))
    assert pass_hat_interval({"a": (1, 2), "b": (1, 1)}, 2) is None


def test_the_interval_of_pass_hat_k_covers_a_skill_that_is_rarely_reliable():
    """16 tasks of probability Beta(0.3, 1.7), four trials; the t interval covers 33 % at k = 4."""
    a, b, k = 0.3, 1.7, 4
    truth = exp(sum(log((a + i) / (a + b + i)) for i in range(k)))
    rng, hits, repeats = Random(0), 0, 200
    for _ in range(repeats):
        rates = [rng.betavariate(a, b) for _ in range(16)]
        counts = {
            str(i): (sum(rng.random() < rate for _ in range(4)), 4) for i, rate in enumerate(rates)
        }
        found = pass_hat_interval(counts, k)
        assert found is not None
        hits += found.low <= truth <= found.high
    assert hits / repeats >= 0.95
