from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_cl.metrics.continual import (
    OrderSummary,
    average_incremental_performance,
    average_performance,
    backward_transfer,
    backward_transfer_all,
    backward_transfer_by_domain,
    continual_scores,
    current_performance,
    forgetting,
    forgetting_by_domain,
    forward_transfer,
    intransigence,
    isolated_forgetting,
    learning_accuracy,
    order_summary,
    pass_at_k,
    pass_hat_k,
    retention,
    retention_by_domain,
)

WORKED = [
    [0.2, 0.1, 0.0],
    [0.8, 0.2, 0.1],
    [0.9, 0.7, 0.3],
    [0.5, 0.6, 0.9],
]
"""The example of docs/metrics.md."""

shares = st.floats(0, 1)
matrices = st.integers(2, 5).flatmap(
    lambda size: st.lists(
        st.lists(shares, min_size=size, max_size=size), min_size=size + 1, max_size=size + 1
    )
)


def test_the_worked_example_of_the_docs_is_reproduced():
    assert average_performance(WORKED) == pytest.approx((0.5 + 0.6 + 0.9) / 3)
    assert average_incremental_performance(WORKED) == pytest.approx((0.8 + 0.8 + 2 / 3) / 3)
    assert current_performance(WORKED) == 0.9
    assert learning_accuracy(WORKED) == pytest.approx(0.8)
    assert backward_transfer(WORKED) == pytest.approx(-0.2)
    assert backward_transfer_all(WORKED) == pytest.approx((0.1 - 0.3 - 0.1) / 3)
    assert forgetting(WORKED) == pytest.approx(0.25)
    assert retention(WORKED) == pytest.approx((0.5 / 0.8 + 0.6 / 0.7) / 2)
    assert forward_transfer(WORKED) == pytest.approx(0.2)
    assert intransigence(WORKED, [0.9, 0.8, 0.9]) == pytest.approx(0.2 / 3)


def test_backward_transfer_and_forgetting_by_domain():
    assert backward_transfer_by_domain(WORKED) == pytest.approx([-0.3, -0.1])
    assert forgetting_by_domain(WORKED) == pytest.approx([0.4, 0.1])


def test_isolated_forgetting_is_by_stage_and_domain():
    first, second, third = isolated_forgetting(WORKED)
    assert first == [None, None, None]
    assert second[0] == pytest.approx(-0.1)
    assert second[1:] == [None, None]
    assert third[:2] == pytest.approx([0.4, 0.1])
    assert third[2] is None


@given(matrices)
def test_isolated_forgetting_sums_to_negative_backward_transfer(scores: list[list[float]]):
    drops = isolated_forgetting(scores)
    for domain, change in enumerate(backward_transfer_by_domain(scores)):
        column = [row[domain] for row in drops]
        assert change == pytest.approx(-sum(value for value in column if value is not None))


def test_retention_is_missing_for_a_domain_that_was_not_learned():
    scores = [[0.0, 0.0, 0.0], [0.04, 0.0, 0.0], [0.02, 0.6, 0.0], [0.04, 0.3, 0.5]]
    assert retention_by_domain(scores) == [None, pytest.approx(0.5)]
    assert retention(scores) is None


def test_a_missing_cell_makes_the_adjacent_isolated_forgetting_missing():
    scores = [list[float | None](row) for row in WORKED]
    scores[2][0] = None
    assert isolated_forgetting(scores)[1][0] is None
    assert isolated_forgetting(scores)[2] == [None, pytest.approx(0.1), None]


def test_the_summary_over_orders_has_mean_and_spread():
    assert order_summary([0.1, 0.3, 0.5]) == pytest.approx((0.3, 0.2, 0.1, 0.4, 3))
    forgetting = order_summary([0.1, 0.3, 0.5], is_better_high=False)
    assert forgetting is not None and forgetting.worst == 0.5
    assert order_summary([0.25]) == OrderSummary(0.25, None, 0.25, 0.0, 1)


@pytest.mark.parametrize("values", [[], [0.1, None]])
def test_orders_with_a_missing_score_have_no_summary(values: list[float | None]):
    assert order_summary(values) is None


def test_a_run_in_progress_is_scored_at_its_last_stage():
    assert average_performance(WORKED[:3]) == pytest.approx(0.8)
    assert current_performance(WORKED[:3]) == 0.7
    assert backward_transfer(WORKED[:3]) == pytest.approx(0.1)
    assert forgetting(WORKED[:3]) == pytest.approx(-0.1)
    assert forward_transfer(WORKED[:3]) == pytest.approx(0.1)


def test_one_domain_has_no_transfer_and_no_forgetting():
    results = continual_scores(WORKED[:2])
    assert results["average_performance"] == results["current_performance"] == 0.8
    assert results["backward_transfer"] is None
    assert results["backward_transfer_all"] is None
    assert results["forgetting"] is None
    assert results["retention"] is None
    assert results["forward_transfer"] is None
    assert isolated_forgetting(WORKED[:2]) == [[None, None, None]]


@pytest.mark.parametrize("scores", [[], WORKED[:1]])
def test_an_untrained_policy_has_no_scores(scores: list[list[float]]):
    assert set(continual_scores(scores).values()) == {None}


def test_a_missing_cell_makes_only_the_scores_that_need_it_missing():
    without_superdiagonal = [list[float | None](row) for row in WORKED]
    without_superdiagonal[1][1] = None
    results = continual_scores(without_superdiagonal)
    assert results["forward_transfer"] is None
    assert results["backward_transfer"] == pytest.approx(-0.2)

    without_middle = [list[float | None](row) for row in WORKED]
    without_middle[2][0] = None
    results = continual_scores(without_middle)
    assert results["forgetting"] is None
    assert results["average_performance"] is not None


def test_intransigence_needs_a_reference_for_every_domain():
    assert intransigence(WORKED, []) is None
    assert intransigence(WORKED, [0.9, None, 0.9]) is None


@given(matrices)
def test_average_performance_is_learning_accuracy_plus_weighted_backward_transfer(
    scores: list[list[float]],
):
    size = len(scores) - 1
    average, learned, back = (
        average_performance(scores),
        learning_accuracy(scores),
        backward_transfer(scores),
    )
    assert average is not None and learned is not None and back is not None
    assert average == pytest.approx(learned + (size - 1) / size * back)


@given(matrices)
def test_forgetting_is_at_least_the_loss_since_learning(scores: list[list[float]]):
    drop, back = forgetting(scores), backward_transfer(scores)
    assert drop is not None and back is not None
    assert drop >= -back - 1e-12


def test_pass_hat_k_and_pass_at_k_match_a_hand_calculation():
    tasks = {"a": (4, 4), "b": (2, 4), "c": (0, 4)}
    assert pass_hat_k(tasks, 1) == pass_at_k(tasks, 1) == pytest.approx(0.5)
    assert pass_hat_k(tasks, 2) == pytest.approx((1 + 1 / 6 + 0) / 3)
    assert pass_at_k(tasks, 2) == pytest.approx((1 + 5 / 6 + 0) / 3)


def test_fewer_than_k_trials_make_pass_hat_k_missing():
    assert pass_hat_k({"a": (4, 4), "b": (1, 1)}, 2) is None
    assert pass_at_k({"a": (4, 4), "b": (1, 1)}, 2) is None
    assert pass_hat_k({}, 1) is None


def test_pass_hat_k_is_unbiased():
    """Over all outcomes of four fair trials its mean is the probability of k successes."""
    outcomes = [sum(trials) for trials in product((0, 1), repeat=4)]
    for k in (1, 2, 3, 4):
        results = [pass_hat_k({"a": (count, 4)}, k) for count in outcomes]
        assert sum(value or 0 for value in results) / len(results) == pytest.approx(0.5**k)
