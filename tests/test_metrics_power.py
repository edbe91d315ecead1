from math import sqrt
from random import Random
from statistics import fmean, stdev

import pytest
from pydantic import ValidationError

from grpo_cl.errors import ConfigError
from grpo_cl.metrics.continual import backward_transfer
from grpo_cl.metrics.power import (
    SPREAD,
    Design,
    habits,
    precision_of_average,
    precision_of_backward_transfer,
    precision_of_cell,
    seeds_needed,
)
from grpo_cl.metrics.rmatrix import Cell, RMatrix
from grpo_cl.metrics.statistics import seed_difference

EVALUATION_ONLY = Design(tasks=(20, 40, 40), seed_sd=0.0)


def design(**changes: float) -> Design:
    return EVALUATION_ONLY.model_copy(update=changes)


@pytest.mark.parametrize(
    ("tasks", "trials", "error"),
    [
        (20, 1, 0.0816),
        (20, 4, 0.041),
        (20, 8, 0.029),
        (40, 1, 0.058),
        (40, 4, 0.029),
        (40, 8, 0.020),
    ],
)
def test_the_error_of_a_cell_is_that_of_its_plays(tasks: int, trials: int, error: float):
    found = precision_of_cell(design(trials=trials), tasks).one_run
    assert found == pytest.approx(sqrt(0.24 * 5 / 9 / tasks / trials))
    assert found == pytest.approx(error, abs=5e-4)


def test_the_default_spread_of_tasks_is_that_of_a_beta_distribution():
    """Beta(a, b) has variance m(1−m)/(a+b+1) around its mean m."""
    assert pytest.approx(1 / (0.5 + 0.75 + 1)) == SPREAD


@pytest.mark.parametrize(
    ("trials", "seeds", "error"), [(4, 1, 0.035), (4, 3, 0.020), (8, 5, 0.011)]
)
def test_backward_transfer_of_three_domains_rests_on_four_cells(
    trials: int, seeds: int, error: float
):
    found = precision_of_backward_transfer(design(trials=trials, seeds=seeds))
    assert found is not None
    cells = [0.24 * 5 / 9 / tasks / trials for tasks in (20, 20, 40, 40)]
    assert found.method == pytest.approx(sqrt(sum(cells)) / 2 / sqrt(seeds))
    assert found.method == pytest.approx(error, abs=5e-4)
    assert found.difference == pytest.approx(sqrt(2) * found.method)


def test_seeds_add_their_own_spread():
    found = precision_of_average(Design(tasks=(20, 20), trials=4, seeds=4, seed_sd=0.03))
    plays = 2 * 0.24 * 5 / 9 / 80 / 4
    assert found.one_run == pytest.approx(sqrt(plays))
    assert found.method == pytest.approx(sqrt((plays + 0.03**2 / 2) / 4))
    assert found.half_width == pytest.approx(3.182446 * found.method)


def test_one_seed_detects_nothing_and_one_domain_has_no_backward_transfer():
    found = precision_of_cell(design(seeds=1), 20)
    assert found.half_width is None
    assert found.detectable is None
    assert precision_of_backward_transfer(Design(tasks=(20,))) is None
    assert seeds_needed(Design(tasks=(20,)), 0.1, precision_of_backward_transfer) is None


def test_more_comparisons_and_more_power_need_a_larger_difference():
    def detectable(**changes: float) -> float:
        found = precision_of_cell(design(**changes), 20).detectable
        assert found is not None
        return found

    assert detectable() < detectable(comparisons=7) < detectable(comparisons=7, power=0.9)
    assert detectable(seeds=200) == pytest.approx(
        (1.959964 + 0.841621) * precision_of_cell(design(seeds=200), 20).difference, rel=0.01
    )


@pytest.mark.parametrize(("seeds", "comparisons"), [(3, 1), (3, 7), (5, 1)])
def test_a_detectable_difference_is_found_as_often_as_promised(seeds: int, comparisons: int):
    planned = Design(seeds=seeds, comparisons=comparisons)
    found = precision_of_cell(planned, 20)
    assert found.detectable is not None
    spread = found.method * sqrt(seeds)
    rng = Random(0)
    repeats, hits = 600, 0
    for _ in range(repeats):
        better = [rng.gauss(found.detectable, spread) for _ in range(seeds)]
        p_value = seed_difference(
            better, [rng.gauss(0, spread) for _ in range(seeds)], tasks=20
        ).p_value
        hits += p_value is not None and p_value < 0.05 / comparisons
    assert hits / repeats == pytest.approx(0.8, abs=0.04)


def test_the_seeds_that_are_needed_are_the_fewest():
    needed = seeds_needed(Design(), 0.1, precision_of_backward_transfer)
    assert needed is not None
    enough, fewer = (
        precision_of_backward_transfer(Design(seeds=seeds)) for seeds in (needed, needed - 1)
    )
    assert enough is not None and enough.detectable is not None
    assert fewer is not None and fewer.detectable is not None
    assert enough.detectable <= 0.1 < fewer.detectable


def test_an_effect_out_of_reach_has_no_answer_and_none_at_all_is_refused():
    assert seeds_needed(Design(), 1e-5, precision_of_average) is None
    with pytest.raises(ConfigError, match="above 0"):
        seeds_needed(Design(), 0.0, precision_of_average)


@pytest.mark.parametrize("wrong", [{"level": 1.0}, {"tasks": ()}, {"seeds": 0}, {"power": 0.4}])
def test_an_impossible_design_is_refused(wrong: dict[str, float]):
    with pytest.raises(ValidationError):
        Design.model_validate(wrong)


def cell(*successes: int, trials: int = 4) -> Cell:
    tasks = {str(number): (count, trials) for number, count in enumerate(successes)}
    return Cell(mean=fmean(successes) / trials, tasks=tasks)


def run(learned: Cell, kept: Cell | None = None) -> RMatrix:
    matrix = RMatrix(domains=("a", "b")).with_cell("a", "a", learned)
    return matrix if kept is None else matrix.with_cell("b", "a", kept)


def test_past_runs_say_what_to_expect():
    """Every task always or never succeeds, so all spread between runs is of the seeds."""
    found = habits([run(cell(4, 4, 0, 0)), run(cell(4, 4, 4, 0))])
    assert found.level == pytest.approx(0.625)
    assert found.task_spread == pytest.approx(1.0)
    assert found.seed_sd == pytest.approx(0.25 / sqrt(2))
    assert (found.tasks, found.trials) == (None, 4)


def test_the_noise_of_plays_is_taken_out_of_the_spread_between_seeds():
    """Two of four on each of two tasks: noise 1/12 a task, 1/24 a cell; the runs differ by 1/4."""
    found = habits([run(cell(2, 2)), run(cell(2, 4))])
    between = 0.25**2 / 2
    assert found.seed_sd == pytest.approx(sqrt(max(0.0, between - (1 / 24 + 1 / 48) / 2)))


def test_past_runs_do_not_say_what_they_cannot():
    alone = habits([run(cell(2, 4), cell(1, 1))])
    assert alone.seed_sd is None
    played_once = habits([run(cell(1, 0, trials=1)), run(cell(1, 1, trials=1))])
    assert (played_once.task_spread, played_once.seed_sd) == (None, None)
    assert played_once.level == 0.75
    with pytest.raises(ConfigError, match="different orders"):
        habits([run(cell(1, 1)), RMatrix(domains=("b", "a"))])


def test_the_errors_and_the_spread_of_seeds_agree_with_simulated_campaigns():
    rng = Random(1)
    planned = Design(tasks=(20, 20), trials=4, seeds=1, seed_sd=0.06)
    runs: list[RMatrix] = []
    chances = [rng.betavariate(4, 6) for _ in range(20)]
    for _ in range(400):
        matrix = RMatrix(domains=("a", "b"))
        for stage, domain in (("a", "a"), ("b", "a"), ("b", "b")):
            shift = rng.gauss(0, 0.06)
            counts = [sum(rng.random() < p + shift for _ in range(4)) for p in chances]
            matrix = matrix.with_cell(stage, domain, cell(*counts))
        runs.append(matrix)
    found = habits(runs)
    assert (found.tasks, found.trials) == ((20, 20), 4)
    assert found.seed_sd == pytest.approx(0.06, rel=0.1)
    assert found.level is not None and found.task_spread is not None
    known = {"level": found.level, "task_spread": found.task_spread}
    expected = precision_of_backward_transfer(planned.model_copy(update=known))
    scores = [backward_transfer(matrix.scores()) for matrix in runs]
    assert expected is not None
    assert stdev(score for score in scores if score is not None) == pytest.approx(
        expected.method, rel=0.1
    )
