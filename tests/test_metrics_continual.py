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


def test_the_worked_example_of_the_docs_gives_its_numbers():
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


def test_each_earlier_domain_has_its_own_change():
    assert backward_transfer_by_domain(WORKED) == pytest.approx([-0.3, -0.1])
    assert forgetting_by_domain(WORKED) == pytest.approx([0.4, 0.1])


def test_isolated_forgetting_says_which_stage_hurt_whom():
    first, second, third = isolated_forgetting(WORKED)
    assert first == [None, None, None]
    assert second[0] == pytest.approx(-0.1)
    assert second[1:] == [None, None]
    assert third[:2] == pytest.approx([0.4, 0.1])
    assert third[2] is None


@given(matrices)
def test_what_the_stages_took_adds_up_to_backward_transfer(scores: list[list[float]]):
    taken = isolated_forgetting(scores)
    for domain, change in enumerate(backward_transfer_by_domain(scores)):
        lost = [row[domain] for row in taken]
        assert change == pytest.approx(-sum(value for value in lost if value is not None))


def test_nothing_is_retained_of_what_was_not_learned():
    scores = [[0.0, 0.0, 0.0], [0.04, 0.0, 0.0], [0.02, 0.6, 0.0], [0.04, 0.3, 0.5]]
    assert retention_by_domain(scores) == [None, pytest.approx(0.5)]
    assert retention_by_domain(scores, floor=0.0) == [pytest.approx(1.0), pytest.approx(0.5)]
    assert retention(scores) is None


def test_a_missing_cell_has_no_isolated_forgetting_on_either_side():
    scores = [list[float | None](row) for row in WORKED]
    scores[2][0] = None
    assert isolated_forgetting(scores)[1][0] is None
    assert isolated_forgetting(scores)[2] == [None, pytest.approx(0.1), None]


def test_orders_are_summed_up_by_their_spread():
    assert order_summary([0.1, 0.3, 0.5]) == pytest.approx((0.3, 0.2, 0.1, 0.4, 3))
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
    found = continual_scores(WORKED[:2])
    assert found["average_performance"] == found["current_performance"] == 0.8
    assert found["backward_transfer"] is None
    assert found["backward_transfer_all"] is None
    assert found["forgetting"] is None
    assert found["retention"] is None
    assert found["forward_transfer"] is None
    assert isolated_forgetting(WORKED[:2]) == [[None, None, None]]


@pytest.mark.parametrize("scores", [[], WORKED[:1]])
def test_nothing_learned_has_no_scores(scores: list[list[float]]):
    assert set(continual_scores(scores).values()) == {None}


def test_a_missing_cell_makes_exactly_the_scores_that_need_it_missing():
    without_superdiagonal = [list[float | None](row) for row in WORKED]
    without_superdiagonal[1][1] = None
    found = continual_scores(without_superdiagonal)
    assert found["forward_transfer"] is None
    assert found["backward_transfer"] == pytest.approx(-0.2)

    without_middle = [list[float | None](row) for row in WORKED]
    without_middle[2][0] = None
    found = continual_scores(without_middle)
    assert found["forgetting"] is None
    assert found["average_performance"] is not None


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


def test_pass_hat_k_and_pass_at_k_agree_with_numbers_by_hand():
    tasks = {"a": (4, 4), "b": (2, 4), "c": (0, 4)}
    assert pass_hat_k(tasks, 1) == pass_at_k(tasks, 1) == pytest.approx(0.5)
    assert pass_hat_k(tasks, 2) == pytest.approx((1 + 1 / 6 + 0) / 3)
    assert pass_at_k(tasks, 2) == pytest.approx((1 + 5 / 6 + 0) / 3)


def test_a_task_played_too_rarely_makes_pass_hat_k_missing():
    assert pass_hat_k({"a": (4, 4), "b": (1, 1)}, 2) is None
    assert pass_at_k({"a": (4, 4), "b": (1, 1)}, 2) is None
    assert pass_hat_k({}, 1) is None


def test_pass_hat_k_is_unbiased():
    """Over all outcomes of four fair plays its mean is the chance of k successes."""
    outcomes = [sum(plays) for plays in product((0, 1), repeat=4)]
    for k in (1, 2, 3, 4):
        found = [pass_hat_k({"a": (count, 4)}, k) for count in outcomes]
        assert sum(value or 0 for value in found) / len(found) == pytest.approx(0.5**k)
