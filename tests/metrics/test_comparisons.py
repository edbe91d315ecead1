from math import sqrt
from random import Random

import pytest

from grpo_cl.errors import ConfigError
from grpo_cl.metrics.comparisons import (
    Analysis,
    compare,
    compare_policies,
    corrected,
    score_interval,
    seed_differences,
    with_pooled_base,
)
from grpo_cl.metrics.continual import average_performance, backward_transfer
from grpo_cl.metrics.rmatrix import BASE, Cell, RMatrix
from grpo_cl.metrics.statistics import TASKS_COVERED, holm, seed_difference, seed_interval


def run(*successes: int) -> RMatrix:
    """A run on one domain; average performance is the mean over four trials of each task."""
    tasks = {str(number): (count, 4) for number, count in enumerate(successes)}
    cell = Cell(mean=sum(successes) / 4 / len(successes), tasks=tasks)
    return RMatrix(domains=("a",)).with_cell("a", "a", cell)


SEQUENTIAL = {0: run(0, 0), 1: run(1, 0), 2: run(0, 2)}
REPLAY = {0: run(4, 3), 1: run(4, 4), 2: run(3, 4)}
EWC = {0: run(2, 0), 1: run(0, 1), 2: run(4, 0)}


def test_the_interval_is_over_seeds_or_over_tasks_for_one_seed():
    over_seeds = score_interval([*REPLAY.values()], average_performance, rng=Random(0))
    assert over_seeds is not None
    assert over_seeds.estimate == pytest.approx((0.875 + 1 + 0.875) / 3)
    assert (over_seeds.seeds, over_seeds.tasks, over_seeds.method) == (3, 2, "t over seeds")
    over_tasks = score_interval([REPLAY[0]], average_performance, rng=Random(0))
    assert over_tasks is not None
    assert (over_tasks.estimate, over_tasks.seeds, over_tasks.covers) == (0.875, 1, TASKS_COVERED)


def test_the_average_of_one_run_without_a_success_has_an_exact_upper_end():
    """Domains of 10 and 40 tasks weigh the same, so they count as 4 / (1/10 + 1/40) = 32 tasks."""
    matrix = RMatrix(domains=("a", "b"))
    for domain, count in (("a", 10), ("b", 40)):
        tasks = {str(number): (0, 1) for number in range(count)}
        matrix = matrix.with_cell("b", domain, Cell(mean=0.0, tasks=tasks))
    found = score_interval([matrix], average_performance, rng=Random(0))
    assert found is not None
    assert (found.low, found.high) == (0.0, pytest.approx(1 - 0.025 ** (1 / 32)))
    assert (found.method, found.covers) == ("Clopper-Pearson over tasks", TASKS_COVERED)


def test_differences_from_the_baseline_have_holms_correction():
    methods = {"sequential": SEQUENTIAL, "replay": REPLAY, "ewc": EWC}
    comparisons = corrected(compare(methods, "sequential", average_performance, rng=Random(0)))
    assert set(comparisons) == {"replay", "ewc"}
    replay, ewc = comparisons["replay"], comparisons["ewc"]
    assert replay is not None and ewc is not None
    assert replay.difference == seed_difference([0.875, 1, 0.875], [0, 0.125, 0.25], tasks=2)
    assert {"replay": replay.p_holm, "ewc": ewc.p_holm} == holm(
        {"replay": replay.difference.p_value, "ewc": ewc.difference.p_value}
    )
    assert replay.p_holm is not None and replay.p_holm < 0.05


def test_one_seed_gives_an_interval_over_tasks_and_no_p_value_between_methods():
    for methods in (
        {"sequential": SEQUENTIAL, "replay": {0: REPLAY[0]}},
        {"sequential": {0: SEQUENTIAL[0]}, "replay": REPLAY},
    ):
        comparison = compare(methods, "sequential", average_performance, rng=Random(0))["replay"]
        assert comparison is not None
        assert (comparison.difference.seeds, comparison.difference.covers) == (1, TASKS_COVERED)
        assert comparison.p_value is None


def test_two_policies_are_compared_over_tasks_with_a_p_value():
    runs = {"sequential": run(0, 1, 0, 2), "replay": run(4, 3, 3, 4)}
    found = compare_policies(runs, "sequential", average_performance, rng=Random(0))["replay"]
    assert found is not None
    assert found.difference.covers == TASKS_COVERED
    assert found.p_value == found.p_holm is not None


def test_runs_that_share_their_first_stage_are_paired_by_seed():
    """Differences 0.875, 0.875 and 0.625 at seeds 0, 1 and 2; seed 3 has no partner."""
    methods = {"sequential": {**SEQUENTIAL, 3: run(4, 4)}, "replay": REPLAY}
    analysis = Analysis(paired=["replay"])
    found = compare(methods, "sequential", average_performance, rng=Random(0), analysis=analysis)
    comparison = found["replay"]
    assert comparison is not None
    expected = seed_interval([0.875, 0.875, 0.625], tasks=2)
    assert comparison.difference == expected.model_copy(update={"method": "paired t over seeds"})


def test_a_pooled_variance_is_that_of_the_block_design_worked_out_by_hand():
    """Two seeds of three methods: 0 2, 1 5 and 2 2."""
    values = {"a": {0: 0.0, 1: 2.0}, "b": {0: 1.0, 1: 5.0}, "c": {0: 2.0, 1: 2.0}}
    analysis = Analysis(paired=["a", "b", "c"], is_pooled=True)
    found = seed_differences(values, "a", analysis=analysis, tasks=10)
    assert found["b"].estimate == 2.0
    assert found["c"].estimate == 1.0
    # Column means 1 and 3, row means 1, 3 and 2: residuals 0 0, -1 1, 1 -1; squares sum to 4.
    assert found["b"].degrees == 2
    assert found["b"].standard_error == pytest.approx(sqrt(2 * (4 / 2) / 2))
    assert found["c"].standard_error == found["b"].standard_error


def test_a_pooled_variance_without_pairs_is_that_within_methods():
    values = {"a": {0: 0.0, 1: 2.0}, "b": {0: 1.0, 1: 5.0}, "c": {0: 2.0, 1: 2.0, 2: 2.0}}
    found = seed_differences(values, "a", analysis=Analysis(is_pooled=True), tasks=10)
    # Sums of squares 2, 8 and 0 with 1 + 1 + 2 degrees of freedom.
    assert found["c"].degrees == 4
    assert found["c"].standard_error == pytest.approx(sqrt(10 / 4 * (1 / 3 + 1 / 2)))


REPEATS = 400


def rejections(
    analysis: Analysis, *, effect: float, methods: int, noise_of_reference: float = 1.0
) -> float:
    """The share of simulated campaigns of three seeds in which Holm's test finds method 1."""
    rng, found, repeats = Random(0), 0, REPEATS
    names = [str(number) for number in range(methods)]
    for _ in range(repeats):
        stages = [rng.gauss(0, 1) for _ in range(3)]
        values = {
            name: {
                seed: stage
                + rng.gauss(effect * (name == "1"), noise_of_reference if name == "0" else 1.0)
                for seed, stage in enumerate(stages)
            }
            for name in names
        }
        intervals = seed_differences(values, "0", analysis=analysis, tasks=1)
        p_values = holm({name: interval.p_value for name, interval in intervals.items()})
        smallest = p_values["1"] if effect else min(p for p in p_values.values() if p is not None)
        found += smallest is not None and smallest < 0.05
    return found / repeats


def test_pooling_over_nine_methods_finds_effects_of_three_seeds_and_keeps_its_error_rate():
    names = [str(number) for number in range(1, 9)]
    paired, pooled = Analysis(paired=names), Analysis(paired=names, is_pooled=True)
    assert rejections(paired, effect=4.0, methods=9) < 0.3
    assert rejections(pooled, effect=4.0, methods=9) > 0.8
    for analysis in (paired, pooled):
        assert rejections(analysis, effect=0.0, methods=9) <= 0.05 + 2 * sqrt(0.05 * 0.95 / REPEATS)


def test_pooling_is_wrong_where_the_reference_is_twice_as_variable():
    names = [str(number) for number in range(1, 9)]
    pooled = Analysis(paired=names, is_pooled=True)
    assert rejections(pooled, effect=0.0, methods=9, noise_of_reference=2.0) > 0.08


def test_pooling_keeps_the_error_rate_of_a_method_that_is_not_paired():
    """Eight methods share first stages that vary much; a ninth, ``joint``, has its own."""
    names = [str(number) for number in range(1, 8)]
    analysis = Analysis(paired=names, is_pooled=True)
    rng, found, repeats = Random(0), 0, 1000
    for _ in range(repeats):
        stages = [rng.gauss(0, 1) for _ in range(3)]
        values = {
            name: {seed: rng.gauss(stage, 0.25) for seed, stage in enumerate(stages)}
            for name in ("0", *names)
        }
        values["joint"] = {seed: rng.gauss(0, sqrt(1 + 0.25**2)) for seed in range(3)}
        p_value = seed_differences(values, "0", analysis=analysis, tasks=1)["joint"].p_value
        found += p_value is not None and p_value < 0.05
    assert found / repeats <= 0.08  # 12 % with the degrees of freedom of independent methods


def test_row_0_is_pooled_over_the_seeds_of_one_untrained_policy():
    def with_base(found: RMatrix, successes: int) -> RMatrix:
        base = Cell(mean=successes / 4, tasks={"0": (successes, 4)})
        return found.with_cell(BASE, "a", base)

    methods = {
        "sequential": {0: with_base(run(1), 1), 1: with_base(run(2), 3)},
        "replay": {0: with_base(run(3), 1), 1: with_base(run(4), 3)},
    }
    pooled = with_pooled_base(methods)
    cells = [found.cell(BASE, "a") for runs in pooled.values() for found in runs.values()]
    assert cells == [Cell(mean=0.5, tasks={"0": (4, 8)})] * 4
    assert pooled["replay"][1].cell("a", "a") == methods["replay"][1].cell("a", "a")
    other_start = {**methods, "ewc": {0: with_base(run(3), 2)}}
    assert with_pooled_base(other_start) == other_start
    other_tasks = run(2).with_cell(BASE, "a", run(2, 3).rows[0].cells["a"])
    left_out = {"sequential": {0: with_base(run(1), 1), 1: other_tasks}}
    assert with_pooled_base(left_out) == left_out


def test_a_missing_score_has_no_comparison_and_an_unknown_baseline_is_refused():
    methods = {"sequential": SEQUENTIAL, "replay": REPLAY}
    assert compare(methods, "sequential", backward_transfer, rng=Random(0)) == {"replay": None}
    assert score_interval([*REPLAY.values()], backward_transfer, rng=Random(0)) is None
    assert score_interval([], average_performance, rng=Random(0)) is None
    with pytest.raises(ConfigError, match="'joint' has no runs; methods with runs: sequential, re"):
        compare(methods, "joint", average_performance, rng=Random(0))


def test_runs_on_different_tasks_are_not_compared():
    methods = {"sequential": SEQUENTIAL, "replay": {0: run(1, 2, 3), 1: run(1, 2, 4)}}
    with pytest.raises(ConfigError, match="same tasks"):
        compare(methods, "sequential", average_performance, rng=Random(0))
