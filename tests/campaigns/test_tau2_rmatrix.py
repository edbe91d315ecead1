import json
from pathlib import Path

import pytest

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.rmatrix import BASE, Cell, DomainFacts, RMatrix
from grpo_cl.runs.layout import RunDir
from tau2_rmatrix import (
    Matrices,
    Pair,
    agreement_rows,
    average_gain,
    centred,
    change_rows,
    difference_rows,
    draw,
    finished,
    pairs,
    pearson,
    read_campaign,
    rest_only,
)

DOMAINS = ("airline", "retail")
TASKS = 4


def matrix(rows: list[list[float]]) -> RMatrix:
    """The matrix with these pass rates, on four tasks of each domain with one trial."""
    found = RMatrix(domains=DOMAINS)
    for after, rates in zip((BASE, *DOMAINS), rows, strict=False):
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


def test_a_first_stage_of_its_own_is_a_policy_of_its_own() -> None:
    own = EWC._replace(generated=matrix([[0.25, 0.25], [0.5, 0.25], [0.75, 0.75]]))
    assert len(pairs([SEQUENTIAL, own])) == 5 * len(DOMAINS)


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


UNFINISHED = Matrices(
    "replay",
    tau2=matrix([[0.0, 0.25], [0.5, 0.25]]),
    generated=matrix([[0.25, 0.25], [0.75, 0.25]]),
)


def test_an_unfinished_run_has_the_changes_of_its_stages_and_no_scores() -> None:
    _, learned, since = change_rows([UNFINISHED])
    assert [str(text).split(" ")[0] for text in learned[2:]] == ["+.500", "+.500", "–", "–"]
    assert since[2:] == ("–",) * 4
    assert finished([SEQUENTIAL, UNFINISHED, EWC]) == [SEQUENTIAL, EWC]
    assert finished([SEQUENTIAL._replace(generated=UNFINISHED.generated)]) == []


def test_differences_have_no_gain_since_all_start_from_the_same_policy() -> None:
    header, _ = difference_rows([SEQUENTIAL, EWC])
    assert [str(name).rsplit(" ", 1)[0] for name in header[1::2]] == [
        "average performance",
        "backward transfer",
    ]


def test_no_pairs_have_no_agreement() -> None:
    assert len(list(agreement_rows([]))) == 1  # the header


def test_matrices_with_unknown_floors_are_not_shown_as_those_without_floor_tasks() -> None:
    facts = {name: DomainFacts(floor_tasks=(f"{name}/0",)) for name in DOMAINS}
    known = Matrices(
        "ewc", *(each.model_copy(update={"facts": facts}) for each in (EWC.tau2, EWC.generated))
    )
    (rest,) = rest_only([SEQUENTIAL, known])
    assert rest.algorithm == "ewc"
    assert all(len(c.tasks) == TASKS - 1 for row in rest.tau2.rows for c in row.cells.values())


def test_a_picture_of_more_domains_than_colours_is_refused() -> None:
    with pytest.raises(ConfigError, match="8 domains in a picture with 7 colours; leave --out out"):
        draw([Pair(f"domain {number}", 0.5, 0.5) for number in range(8)])


def test_several_runs_of_an_algorithm_are_refused(tmp_path: Path) -> None:
    for seed in range(2):
        run = RunDir(tmp_path / "runs" / f"ewc-{seed}")
        run.root.mkdir(parents=True)
        run.r_matrix.write_text(json.dumps(EWC.tau2.to_json()))
        config = GRPOConfig(cl_algorithm="ewc", task_order=DOMAINS, seed=seed)
        run.config.write_text(config.model_dump_json())
    with pytest.raises(ConfigError, match=r"several runs of ewc, .* one seed and one order"):
        read_campaign(tmp_path, tmp_path)
