from itertools import product
from math import comb

import pytest

from grpo_cl.errors import ConfigError
from grpo_cl.metrics.breakdown import (
    churn,
    component_scores,
    gain_normalised_forgetting,
    pass_at_scores,
    pass_hat_scores,
)
from grpo_cl.metrics.rmatrix import BASE, Cell, RMatrix

EMPTY = RMatrix(domains=("airline", "retail"))


def cell(*successes: int, trials: int = 4, **components: float) -> Cell:
    tasks = {f"t{number}": (count, trials) for number, count in enumerate(successes)}
    mean = sum(successes) / trials / len(successes)
    return Cell(mean=mean, tasks=tasks, components=components)


def learned_then_lost(base: Cell, learned: Cell, kept: Cell) -> RMatrix:
    return (
        EMPTY.with_cell(BASE, "airline", base)
        .with_cell("airline", "airline", learned)
        .with_cell("retail", "airline", kept)
    )


def test_components_show_what_was_forgotten_where_the_reward_shows_only_that():
    matrix = (
        EMPTY.with_cell("airline", "airline", cell(4, DB=1.0, tool_name=0.9))
        .with_cell("retail", "airline", cell(2, DB=0.5, tool_name=0.9))
        .with_cell("retail", "retail", cell(3, DB=0.75))
    )
    found = component_scores(matrix)
    assert list(found) == ["DB", "tool_name"]
    assert found["DB"]["backward_transfer"] == pytest.approx(-0.5)
    assert found["DB"]["average_performance"] == pytest.approx(0.625)
    assert found["tool_name"]["backward_transfer"] == 0.0
    assert found["tool_name"]["average_performance"] is None


def test_each_cell_has_its_pass_hat_k_and_pass_at_k():
    matrix = EMPTY.with_cell(BASE, "airline", cell(4, 2, 0))
    assert pass_hat_scores(matrix, 2) == [[pytest.approx((1 + 1 / 6) / 3), None]]
    assert pass_at_scores(matrix, 2) == [[pytest.approx((1 + 5 / 6) / 3), None]]
    assert pass_hat_scores(matrix, 5) == [[None, None]]


def test_churn_agrees_with_numbers_by_hand():
    found = churn({"a": (2, 4), "b": (4, 4)}, {"a": (1, 4), "b": (2, 4)})
    assert found is not None
    assert found.lost == pytest.approx((0.5 * 0.75 + 1 * 0.5) / 2)
    assert found.won == pytest.approx(0.5 * 0.25 / 2)
    assert found.null == pytest.approx(0.25 * 4 / 3 / 2)
    assert found.excess_lost - found.excess_won == pytest.approx((0.25 + 0.5) / 2)


def test_replaying_a_task_is_no_churn_beyond_chance():
    """Over all outcomes of three plays before and two after, the excess is zero on average."""
    chance, excess = 0.3, 0.0
    for before, after in product(range(4), range(3)):
        weight = comb(3, before) * chance**before * (1 - chance) ** (3 - before)
        weight *= comb(2, after) * chance**after * (1 - chance) ** (2 - after)
        found = churn({"a": (before, 3)}, {"a": (after, 2)})
        assert found is not None
        excess += weight * found.excess_lost
    assert excess == pytest.approx(0.0, abs=1e-12)


def test_churn_needs_two_plays_and_the_same_tasks():
    assert churn({"a": (1, 1)}, {"a": (0, 1)}) is None
    assert churn({}, {}) is None
    with pytest.raises(ConfigError, match="'b'"):
        churn({"a": (1, 2)}, {"a": (1, 2), "b": (1, 2)})


def test_forgetting_is_a_share_of_what_was_gained():
    matrix = learned_then_lost(cell(0, 1, 0, 1), cell(3, 4, 3, 3), cell(2, 2, 2, 2))
    found = gain_normalised_forgetting(matrix)
    assert found == {"airline": pytest.approx((0.8125 - 0.5) / 0.6875)}


def test_what_was_not_learned_beyond_noise_cannot_be_forgotten():
    """The gains 1, −0.5, 0.25, 0.25 have mean 0.25 and standard error 0.306."""
    matrix = learned_then_lost(cell(0, 2, 1, 1), cell(4, 0, 2, 2), cell(0, 0, 0, 0))
    assert gain_normalised_forgetting(matrix) == {"airline": None}


def test_forgetting_of_a_gain_needs_all_three_cells():
    matrix = EMPTY.with_cell("airline", "airline", cell(4, 4)).with_cell(
        "retail", "airline", cell(0, 0)
    )
    assert gain_normalised_forgetting(matrix) == {"airline": None}
    assert gain_normalised_forgetting(EMPTY) == {}
    assert gain_normalised_forgetting(EMPTY.with_cell(BASE, "airline", cell(1, 1))) == {}
