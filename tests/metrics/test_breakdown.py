from itertools import product
from math import comb

import pytest

from grpo_cl.errors import ConfigError
from grpo_cl.metrics.breakdown import (
    churn,
    component_scores,
    gain_normalised_forgetting,
)
from grpo_cl.metrics.rmatrix import BASE, Cell, RMatrix

EMPTY = RMatrix(domains=("airline", "retail"))


def cell(*successes: int, trials: int = 4, **components: float) -> Cell:
    tasks = {f"t{number}": (count, trials) for number, count in enumerate(successes)}
    mean = sum(successes) / trials / len(successes)
    return Cell(mean=mean, tasks=tasks, components=components)


def learned_then_lost(base: Cell, learned: Cell, final: Cell) -> RMatrix:
    return (
        EMPTY.with_cell(BASE, "airline", base)
        .with_cell("airline", "airline", learned)
        .with_cell("retail", "airline", final)
    )


def test_each_reward_component_has_its_own_backward_transfer():
    matrix = (
        EMPTY.with_cell("airline", "airline", cell(4, DB=1.0, tool_name=0.9))
        .with_cell("retail", "airline", cell(2, DB=0.5, tool_name=0.9))
        .with_cell("retail", "retail", cell(3, DB=0.75))
    )
    scores = component_scores(matrix)
    assert list(scores) == ["DB", "tool_name"]
    assert scores["DB"]["backward_transfer"] == pytest.approx(-0.5)
    assert scores["DB"]["average_performance"] == pytest.approx(0.625)
    assert scores["tool_name"]["backward_transfer"] == 0.0
    # No task of retail is judged by its tool calls: airline alone is.
    assert scores["tool_name"]["average_performance"] == 0.9


def test_a_component_is_averaged_over_the_domains_that_are_judged_by_it():
    matrix = (
        EMPTY.with_cell("airline", "airline", cell(4, DB=1.0))
        .with_cell("airline", "retail", cell(4, DB=1.0, COMMUNICATE=0.4))
        .with_cell("retail", "airline", cell(2, DB=0.5))
        .with_cell("retail", "retail", cell(3, DB=0.75, COMMUNICATE=0.6))
    )
    communication = component_scores(matrix)["COMMUNICATE"]
    assert communication["average_performance"] == communication["learning_accuracy"] == 0.6
    assert communication["backward_transfer"] is None
    missing = EMPTY.with_cell("retail", "airline", cell(2, DB=0.5))
    assert component_scores(missing)["DB"]["average_performance"] is None


def test_churn_matches_a_hand_calculation():
    scores = churn({"a": (2, 4), "b": (4, 4)}, {"a": (1, 4), "b": (2, 4)})
    assert scores is not None
    assert scores.lost == pytest.approx((0.5 * 0.75 + 1 * 0.5) / 2)
    assert scores.won == pytest.approx(0.5 * 0.25 / 2)
    assert scores.null == pytest.approx(0.25 * 4 / 3 / 2)
    assert scores.excess_lost - scores.excess_won == pytest.approx((0.25 + 0.5) / 2)


def test_an_unchanged_policy_has_no_excess_churn_on_average():
    """Over all outcomes of three trials before and two after, the excess is zero on average."""
    probability, excess = 0.3, 0.0
    for before, after in product(range(4), range(3)):
        weight = comb(3, before) * probability**before * (1 - probability) ** (3 - before)
        weight *= comb(2, after) * probability**after * (1 - probability) ** (2 - after)
        scores = churn({"a": (before, 3)}, {"a": (after, 2)})
        assert scores is not None
        excess += weight * scores.excess_lost
    assert excess == pytest.approx(0.0, abs=1e-12)


def test_churn_needs_two_trials_and_the_same_tasks():
    assert churn({"a": (1, 1)}, {"a": (0, 1)}) is None
    assert churn({}, {}) is None
    with pytest.raises(ConfigError, match="'b'"):
        churn({"a": (1, 2)}, {"a": (1, 2), "b": (1, 2)})


def test_forgetting_is_normalised_by_the_gain():
    matrix = learned_then_lost(cell(0, 1, 0, 1), cell(3, 4, 3, 3), cell(2, 2, 2, 2))
    scores = gain_normalised_forgetting(matrix)
    assert scores == {"airline": pytest.approx((0.8125 - 0.5) / 0.6875)}


def test_normalised_forgetting_is_missing_without_a_significant_gain():
    """The gains 1, −0.5, 0.25, 0.25 have mean 0.25 and standard error 0.306."""
    matrix = learned_then_lost(cell(0, 2, 1, 1), cell(4, 0, 2, 2), cell(0, 0, 0, 0))
    assert gain_normalised_forgetting(matrix) == {"airline": None}


def test_normalised_forgetting_needs_all_three_cells():
    matrix = EMPTY.with_cell("airline", "airline", cell(4, 4)).with_cell(
        "retail", "airline", cell(0, 0)
    )
    assert gain_normalised_forgetting(matrix) == {"airline": None}
    assert gain_normalised_forgetting(EMPTY) == {}
    assert gain_normalised_forgetting(EMPTY.with_cell(BASE, "airline", cell(1, 1))) == {}
