from math import sqrt
from random import Random
from statistics import fmean, stdev
from typing import Literal

import pytest
from pydantic import ValidationError

from grpo_cl.errors import ConfigError
from grpo_cl.metrics.comparisons import Analysis, seed_differences
from grpo_cl.metrics.continual import backward_transfer
from grpo_cl.metrics.power import (
    DEFAULT_TASK_SPREAD,
    Design,
    estimate_design,
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
def test_the_standard_error_of_a_cell_is_that_of_its_trials(tasks: int, trials: int, error: float):
    found = precision_of_cell(design(trials=trials), tasks).one_run
    assert found == pytest.approx(sqrt(0.24 * 5 / 9 / tasks / trials))
    assert found == pytest.approx(error, abs=5e-4)


def test_the_default_task_spread_is_that_of_a_beta_distribution():
    """Beta(a, b) has variance m(1−m)/(a+b+1) around its mean m."""
    assert pytest.approx(1 / (0.5 + 0.75 + 1)) == DEFAULT_TASK_SPREAD


@pytest.mark.parametrize(
    ("trials", "seeds", "error"), [(4, 1, 0.035), (4, 3, 0.020), (8, 5, 0.011)]
)
def test_backward_transfer_of_three_domains_depends_on_four_cells(
    trials: int, seeds: int, error: float
):
    found = precision_of_backward_transfer(design(trials=trials, seeds=seeds))
    assert found is not None
    cells = [0.24 * 5 / 9 / tasks / trials for tasks in (20, 20, 40, 40)]
    assert found.method == pytest.approx(sqrt(sum(cells)) / 2 / sqrt(seeds))
    assert found.method == pytest.approx(error, abs=5e-4)
    assert found.difference == pytest.approx(sqrt(2) * found.method)


def test_the_variance_between_seeds_is_added():
    planned = Design(tasks=(20, 20), trials=4, seeds=4, seed_sd=0.03)
    found = precision_of_average(planned)
    evaluation = 2 * 0.24 * 5 / 9 / 80 / 4
    assert found.one_run == pytest.approx(sqrt(evaluation))
    assert found.method == pytest.approx(sqrt((evaluation + 0.03**2) / 4))
    assert found.half_width == pytest.approx(3.182446 * found.method)
    independent = planned.model_copy(update={"domain_correlation": 0.0})
    assert (planned.design_effect, independent.design_effect) == (2.0, 1.0)
    apart = precision_of_average(independent)
    assert apart.method == pytest.approx(sqrt((evaluation + 0.03**2 / 2) / 4))


def test_the_last_row_of_backward_transfer_is_one_policy():
    """Two earlier domains: two learned cells of different policies, two last ones of one."""
    planned = Design(tasks=(20, 20, 20), seeds=1, seed_sd=0.03, task_spread=1.0)
    found = precision_of_backward_transfer(planned)
    assert found is not None
    assert found.method == pytest.approx(sqrt(0.03**2 * (1 + 1 + (1 + 1) ** 2) / 4))


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
def test_a_detectable_difference_is_found_with_the_nominal_power(seeds: int, comparisons: int):
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


@pytest.mark.parametrize("test", ["paired", "pooled"])
@pytest.mark.parametrize(("seeds", "comparisons"), [(3, 1), (5, 8)])
def test_paired_tests_find_a_detectable_difference_with_the_nominal_power(
    test: Literal["paired", "pooled"], seeds: int, comparisons: int
):
    planned = Design(seeds=seeds, comparisons=comparisons, test=test, pair_correlation=0.6)
    found = precision_of_average(planned)
    assert found.detectable is not None
    spread = found.method * sqrt(seeds)
    names = [str(number) for number in range(comparisons + 1)]
    analysis = Analysis(paired=names[1:], is_pooled=test == "pooled")
    rng, hits = Random(0), 0
    for _ in range(600):
        stages = [rng.gauss(0, spread * sqrt(0.6)) for _ in range(seeds)]
        values = {
            name: {
                seed: stage + rng.gauss(found.detectable * (name == "1"), spread * sqrt(0.4))
                for seed, stage in enumerate(stages)
            }
            for name in names
        }
        p_value = seed_differences(values, "0", analysis=analysis, tasks=100)["1"].p_value
        hits += p_value is not None and p_value < 0.05 / comparisons
    assert hits / 600 == pytest.approx(0.8, abs=0.04)


def test_a_difference_in_average_performance_is_found_with_the_nominal_power():
    """One policy moves all six domains together; their episodes are simulated one by one."""
    planned = Design(tasks=(20,) * 6, trials=2, seeds=4, seed_sd=0.04, task_spread=0.0)
    found = precision_of_average(planned).detectable
    independent = planned.model_copy(update={"domain_correlation": 0.0})
    claimed = precision_of_average(independent).detectable
    assert found is not None and claimed is not None
    rng = Random(1)

    def run(effect: float) -> float:
        rate = 0.4 + effect + rng.gauss(0, 0.04)
        episodes = 6 * 20 * 2  # a binomial count is close to normal here
        return rng.gauss(rate, sqrt(rate * (1 - rate) / episodes))

    def share(effect: float) -> float:
        hits = 0
        for _ in range(600):
            groups = [[run(size) for _ in range(4)] for size in (effect, 0.0)]
            p_value = seed_difference(*groups, tasks=120).p_value
            hits += p_value is not None and p_value < 0.05
        return hits / 600

    assert share(found) == pytest.approx(0.8, abs=0.04)
    assert share(claimed) < 0.6  # what a design of independent domains calls 80 %


def test_the_correlation_of_domains_is_estimated_from_past_runs():
    """Both domains of the last row always move together: a covariance as large as the variance."""

    def moved(successes: int) -> RMatrix:
        same = cell(*([4] * successes + [0] * (4 - successes)))
        return RMatrix(domains=("a", "b")).with_cell("b", "a", same).with_cell("b", "b", same)

    together = estimate_design([moved(1), moved(2), moved(3)])
    assert together.domain_correlation == pytest.approx(1.0)
    assert estimate_design([moved(2), moved(2)]).domain_correlation is None


def test_the_number_of_seeds_needed_is_minimal():
    needed = seeds_needed(Design(), 0.1, precision_of_backward_transfer)
    assert needed is not None
    enough, fewer = (
        precision_of_backward_transfer(Design(seeds=seeds)) for seeds in (needed, needed - 1)
    )
    assert enough is not None and enough.detectable is not None
    assert fewer is not None and fewer.detectable is not None
    assert enough.detectable <= 0.1 < fewer.detectable


def test_an_undetectable_effect_needs_no_finite_seeds_and_zero_is_refused():
    assert seeds_needed(Design(), 1e-5, precision_of_average) is None
    with pytest.raises(ConfigError, match="must be positive"):
        seeds_needed(Design(), 0.0, precision_of_average)


@pytest.mark.parametrize("wrong", [{"level": 1.0}, {"tasks": ()}, {"seeds": 0}, {"power": 0.4}])
def test_an_invalid_design_is_refused(wrong: dict[str, float]):
    with pytest.raises(ValidationError):
        Design.model_validate(wrong)


def cell(*successes: int, trials: int = 4) -> Cell:
    tasks = {str(number): (count, trials) for number, count in enumerate(successes)}
    return Cell(mean=fmean(successes) / trials, tasks=tasks)


def run(learned: Cell, final: Cell | None = None) -> RMatrix:
    matrix = RMatrix(domains=("a", "b")).with_cell("a", "a", learned)
    return matrix if final is None else matrix.with_cell("b", "a", final)


def test_design_parameters_are_estimated_from_past_runs():
    """Every task always or never succeeds, so all variance between runs is that of seeds."""
    found = estimate_design([run(cell(4, 4, 0, 0)), run(cell(4, 4, 4, 0))])
    assert found.level == pytest.approx(0.625)
    assert found.task_spread == pytest.approx(1.0)
    assert found.seed_sd == pytest.approx(0.25 / sqrt(2))
    assert (found.tasks, found.trials) == (None, 4)


def test_the_variance_of_trials_is_subtracted_from_that_between_seeds():
    """Two of four on each of two tasks: noise 1/12 a task, 1/24 a cell; the runs differ by 1/4."""
    found = estimate_design([run(cell(2, 2)), run(cell(2, 4))])
    between = 0.25**2 / 2
    assert found.seed_sd == pytest.approx(sqrt(max(0.0, between - (1 / 24 + 1 / 48) / 2)))


def test_parameters_that_past_runs_do_not_determine_are_missing():
    alone = estimate_design([run(cell(2, 4), cell(1, 1))])
    assert alone.seed_sd is None
    one_trial = estimate_design([run(cell(1, 0, trials=1)), run(cell(1, 1, trials=1))])
    assert (one_trial.task_spread, one_trial.seed_sd) == (None, None)
    assert one_trial.level == 0.75
    with pytest.raises(ConfigError, match="different task orders"):
        estimate_design([run(cell(1, 1)), RMatrix(domains=("b", "a"))])


def test_standard_errors_and_seed_sd_match_simulated_campaigns():
    rng = Random(1)
    planned = Design(tasks=(20, 20), trials=4, seeds=1, seed_sd=0.06)
    runs: list[RMatrix] = []
    probabilities = [rng.betavariate(4, 6) for _ in range(20)]
    for _ in range(400):
        matrix = RMatrix(domains=("a", "b"))
        for stage, domain in (("a", "a"), ("b", "a"), ("b", "b")):
            shift = rng.gauss(0, 0.06)
            counts = [sum(rng.random() < p + shift for _ in range(4)) for p in probabilities]
            matrix = matrix.with_cell(stage, domain, cell(*counts))
        runs.append(matrix)
    found = estimate_design(runs)
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
