from typing import Any

import pytest

from grpo_cl.metrics.rmatrix import BASE, Cell, RMatrix
from grpo_cl.metrics.statistics import seed_interval
from grpo_cl.report.intervals import cell_interval, change_interval, is_beyond_noise
from grpo_cl.report.verdict import Keeping, Learning, verdict

TASKS = 20
ORDER = ("airline", "retail", "telecom")


def cell(successes: int, tasks: int = TASKS) -> Cell:
    """The first tasks succeed in their only trial, so cells are nested."""
    counts = {f"task {n}": (int(n < successes), 1) for n in range(tasks)}
    return Cell(mean=successes / tasks, tasks=counts)


def matrix(rows: list[list[int]], order: tuple[str, ...] = ORDER, tasks: int = TASKS) -> RMatrix:
    """Successes of every stage and domain."""
    made = RMatrix(domains=order)
    for after, row in zip((BASE, *order), rows, strict=False):
        for domain, successes in zip(order, row, strict=True):
            made = made.with_cell(after, domain, cell(successes, tasks))
    return made


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (
            # One of 20 tasks lost: −0.05 with a standard error of 0.05 is within noise.
            [[2, 2, 2], [16, 2, 2], [16, 16, 2], [16, 15, 16]],
            "Learned all three domains; lost 6 % of retail, within noise.",
        ),
        (
            [[2, 2, 2], [16, 2, 2], [4, 16, 2], [2, 8, 16]],
            "Learned all three domains; lost 88 % of airline and 50 % of retail.",
        ),
        (
            [[2, 2, 2], [16, 2, 2], [4, 16, 2], [2, 15, 16]],
            "Learned all three domains; lost 88 % of airline, 6 % of retail within noise.",
        ),
        (
            [[2, 2, 2], [16, 2, 2], [16, 3, 2], [16, 3, 16]],
            "Learned airline and telecom, no gain on retail beyond noise; lost nothing.",
        ),
        (
            [[10, 10, 10], [10, 10, 10], [10, 11, 10], [10, 11, 9]],
            "Learned nothing: no gain on airline, retail and telecom beyond noise; lost nothing.",
        ),
        (
            [[0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]],
            "Learned nothing: no gain on airline, retail and telecom beyond noise.",
        ),
        (
            [[2, 2, 2], [10, 2, 2], [18, 16, 2], [18, 16, 16]],
            "Learned all three domains; later training improved airline.",
        ),
        (
            [[20, 2, 12], [20, 2, 12], [20, 16, 12], [20, 16, 2]],
            "Learned retail, training on telecom lowered its own score, airline was solved before "
            "training; lost nothing.",
        ),
        ([[2, 2, 2], [16, 2, 2]], "After 1 of 3 domains: learned airline."),
        ([[2, 2, 2]], "No domain was trained and evaluated yet."),
        ([], "No domain was trained and evaluated yet."),
    ],
)
def test_the_verdict_follows_from_intervals_of_paired_changes(rows: list[list[int]], sentence: str):
    assert verdict([matrix(rows)]).sentence == sentence


def test_a_stage_without_a_gradient_could_not_learn():
    flat = {"groups": 4.0, "zero_variance_groups": 4.0}
    varied = {"groups": 4.0, "zero_variance_groups": 3.0}
    metrics: dict[str, Any] = {"task_0/train": [flat, flat], "task_1/train": [flat, varied]}
    rows = [[2, 2], [2, 2], [2, 16]]
    judged = verdict([matrix(rows, ORDER[:2])], [metrics])
    assert judged.sentence == (
        "Learned retail, could not learn airline: no training step had a gradient; lost nothing."
    )
    assert [row.learning for row in judged.domains] == [Learning.NO_GRADIENT, Learning.LEARNED]
    assert [row.keeping for row in judged.domains] == [Keeping.KEPT, Keeping.LAST]


def test_two_tasks_that_both_change_are_within_noise_and_six_are_not():
    order = ORDER[:1]
    assert verdict([matrix([[0], [2]], order, tasks=2)]).sentence == (
        "Learned nothing: no gain on airline beyond noise."
    )
    assert verdict([matrix([[0], [6]], order, tasks=6)]).sentence == "Learned airline."


def test_one_task_has_no_interval_and_its_verdict_is_unknown():
    judged = verdict([matrix([[0, 0], [1, 0], [0, 1]], ORDER[:2], tasks=1)])
    assert judged.sentence == (
        "Whether airline and retail was learned is unknown: its score has no interval; "
        "whether airline was kept is unknown: its score has no interval."
    )


def test_several_runs_are_judged_over_seeds():
    # Losses of 0.4, 0.5 and 0.45 of 0.8: t(2) = 4.30 times 0.05/√3 is 0.12 to each side.
    runs = [
        matrix([[2, 2], [16, 2], [16 - lost, 16]], ORDER[:2], tasks=TASKS) for lost in (8, 10, 9)
    ]
    judged = verdict(runs)
    assert judged.sentence == "Learned both domains; lost 56 % of airline."
    change = judged.domains[0].change
    assert change and change.seeds == 3
    assert (change.low, change.high) == pytest.approx((-0.45 - 0.1242, -0.45 + 0.1242), abs=1e-4)
    # Gains of 0.7, −0.1 and 0: within noise over seeds, though the first is not over its tasks.
    unstable = [matrix([[2], [2 + gain]], ORDER[:1]) for gain in (14, -2, 0)]
    assert verdict(unstable).sentence == "Learned nothing: no gain on airline beyond noise."


def test_equal_changes_of_few_seeds_are_judged_over_tasks():
    """Three runs that lose one of 20 tasks each show no variance between seeds, but no loss."""
    same = [matrix([[2, 2], [16, 2], [15, 16]], ORDER[:2])] * 3
    assert verdict(same).sentence == "Learned both domains; lost 6 % of airline, within noise."
    change = change_interval([cell(16)] * 3, [cell(15)] * 3)
    assert change is not None
    assert (change.estimate, change.standard_error) == pytest.approx((-0.05, 0.05))
    everything = [matrix([[0], [6]], ORDER[:1], tasks=6)] * 3
    assert verdict(everything).sentence == "Learned airline."
    few, enough = seed_interval([0.05] * 3, tasks=20), seed_interval([0.05] * 6, tasks=20)
    assert (is_beyond_noise(few), is_beyond_noise(enough)) == (False, True)


def test_rewards_between_zero_and_one_have_an_upper_bound_of_their_noise():
    tasks = {f"task {n}": (0, 4) for n in range(5)}
    before = Cell(mean=0.2, tasks=tasks, reward_std=0.1)
    after = Cell(mean=0.6, tasks=tasks, reward_std=0.2)
    found = cell_interval(before)
    # Five tasks: 0.1/√4, and t(4) = 2.776.
    assert found and found.standard_error == pytest.approx(0.05)
    assert found.high - 0.2 == pytest.approx(2.776 * 0.05, abs=1e-4)
    change = change_interval([before], [after])
    assert change and change.standard_error == pytest.approx((0.05**2 + 0.1**2) ** 0.5)
    assert is_beyond_noise(change)
    assert cell_interval(Cell(mean=0.2, tasks=tasks)) is None
