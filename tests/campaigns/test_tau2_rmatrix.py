import pytest

from grpo_cl.metrics.rmatrix import BASE, Cell, RMatrix
from tau2_rmatrix import Matrices, Pair, average_gain, centred, change_rows, pairs, pearson

DOMAINS = ("airline", "retail")
TASKS = 4


def matrix(rows: list[list[float]]) -> RMatrix:
    """The matrix with these pass rates, on four tasks of each domain with one trial."""
    found = RMatrix(domains=DOMAINS)
    for after, rates in zip((BASE, *DOMAINS), rows, strict=True):
        for domain, rate in zip(DOMAINS, rates, strict=True):
            solved = round(rate * TASKS)
            tasks = {f"{domain}/{index}": (int(index < solved), 1) for index in range(TASKS)}
            found = found.with_cell(after, domain, Cell(mean=rate, tasks=tasks))
    return found


SEQUENTIAL = Matrices(
    "sequential",
    tau2=matrix([[0.0, 0.25], [0.5, 0.25], [0.25, 0.75]]),
    generated=matrix([[0.25, 0.25], [0.75, 0.25], [0.5, 1.0]]),
)
EWC = Matrices(
    "ewc",
    tau2=matrix([[0.0, 0.25], [0.5, 0.25], [0.5, 0.5]]),
    generated=matrix([[0.25, 0.25], [0.75, 0.25], [0.75, 0.75]]),
)


def test_policies_that_algorithms_share_count_once() -> None:
    # The start and the first stage are shared; the last stage has a policy of each algorithm.
    assert len(pairs([SEQUENTIAL, EWC])) == 4 * len(DOMAINS)
    assert pairs([SEQUENTIAL])[0] == Pair("airline", tau2=0.0, generated=0.25)


def test_scores_around_the_means_of_their_domains_correlate_as_worked_out_by_hand() -> None:
    found = [Pair("airline", 0.0, 0.5), Pair("airline", 0.5, 1.0), Pair("retail", 0.5, 0.25)]
    assert centred(found) == [
        Pair("airline", -0.25, -0.25),
        Pair("airline", 0.25, 0.25),
        Pair("retail", 0.0, 0.0),
    ]
    assert pearson(centred(found)) == pytest.approx(1.0)
    assert pearson(found[:2]) is None  # two points lie on a line


def test_the_gain_is_the_last_average_minus_the_first() -> None:
    assert average_gain(SEQUENTIAL.tau2.scores()) == pytest.approx(0.5 - 0.125)


def test_each_domain_has_its_change_in_its_stage_and_since() -> None:
    _, learned, since, *_ = change_rows([SEQUENTIAL])
    assert [str(text).split(" ")[0] for text in learned[2:]] == ["+.500", "+.500", "+.500", "+.750"]
    # Nothing comes after the stage of the last domain.
    assert [str(text).split(" ")[0] for text in since[2:]] == ["−.250", "−.250", "–", "–"]
