"""Scores of one run on two sets of tasks, against values worked out by hand."""

import pytest

from grpo_cl.errors import ConfigError
from grpo_cl.metrics.carry_over import carry_over
from grpo_cl.metrics.rmatrix import BASE, Cell, RMatrix


def matrix(rows: list[list[float | None]], domains: tuple[str, ...] = ("left", "right")) -> RMatrix:
    made = RMatrix(domains=domains)
    for after, scores in zip((BASE, *domains), rows, strict=False):
        for domain, score in zip(domains, scores, strict=True):
            if score is not None:
                made = made.with_cell(after, domain, Cell(mean=score, tasks={"t": (1, 1)}))
    return made


def test_gaps_and_the_correlation_of_changes_are_those_worked_out_by_hand() -> None:
    own = matrix([[0.2, 0.3], [0.8, 0.3], [0.5, 0.9]])
    other = matrix([[0.1, 0.0], [0.3, 0.0], [0.2, 0.3]])
    found = carry_over(own, other)
    assert found.gaps == pytest.approx({"left": 0.3, "right": 0.4})
    # Moves around the domain means: own (-.3 .3 0 -.2 -.2 .4), other (-.1 .1 0 -.1 -.1 .2);
    # sums of products .18, of squares .42 and .08: .18 / sqrt(.42 × .08)
    assert found.correlation == pytest.approx(0.18 / (0.42 * 0.08) ** 0.5)
    assert found.pairs == 6


def test_a_missing_cell_is_no_pair() -> None:
    found = carry_over(matrix([[0.2, 0.3], [0.8, 0.3]]), matrix([[0.1, None], [0.3, None]]))
    assert found.gaps == pytest.approx({"left": 0.3})
    assert (found.correlation, found.pairs) == (None, 2)


def test_scores_that_do_not_move_have_no_correlation() -> None:
    own = matrix([[0.2, 0.3], [0.8, 0.3], [0.5, 0.9]])
    assert carry_over(own, matrix([[0.5, 0.5]] * 3)).correlation is None


def test_matrices_of_other_domains_are_refused() -> None:
    with pytest.raises(ConfigError, match="left, right and of left, up"):
        carry_over(matrix([[0.1, 0.2]]), matrix([[0.1, 0.2]], ("left", "up")))
