import json
from collections.abc import Mapping
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from grpo_cl.campaigns.run_comparison import compare_runs
from grpo_cl.cli import main
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.distributions import t_quantile
from grpo_cl.metrics.rmatrix import BASE, Cell, RMatrix
from grpo_cl.runs.layout import RunDir
from grpo_cl.storage.files import write_json

Solved = Mapping[str, int]
"""Successes of two trials by task."""

UNTRAINED = {"a": 0, "b": 0, "c": 0, "d": 0}
LEFT_THEN_RIGHT = ("left", "right")


def write_run(
    root: Path,
    rows: Mapping[str, tuple[Solved, Solved]],
    *,
    domains: tuple[str, ...] = LEFT_THEN_RIGHT,
    release: str = "1",
    **settings: Any,
) -> Path:
    matrix = RMatrix(domains=domains)
    for after, row in rows.items():
        for domain, solved in zip(domains, row, strict=True):
            tasks = {task: (successes, 2) for task, successes in solved.items()}
            mean = fmean(successes / 2 for successes in solved.values())
            matrix = matrix.with_cell(after, domain, Cell(mean=mean, tasks=tasks))
    run = RunDir(root)
    write_json(run.r_matrix, matrix.to_json())
    write_json(run.config, {"task_order": domains, "log_dir": str(root), **settings})
    write_json(run.environment, {"task_releases": dict.fromkeys(domains, release)})
    return root


@pytest.fixture
def baseline(tmp_path: Path) -> Path:
    """Learns left, then forgets it for right."""
    return write_run(
        tmp_path / "baseline",
        {
            BASE: (UNTRAINED, UNTRAINED),
            "left": ({"a": 2, "b": 2, "c": 2, "d": 0}, UNTRAINED),
            "right": ({"a": 0, "b": 1, "c": 0, "d": 0}, {"a": 2, "b": 2, "c": 1, "d": 0}),
        },
        replay_ratio=0.0,
    )


@pytest.fixture
def protected(tmp_path: Path) -> Path:
    """Forgets one task of left, and learns one task less of right."""
    return write_run(
        tmp_path / "protected",
        {
            BASE: (UNTRAINED, UNTRAINED),
            "left": ({"a": 2, "b": 2, "c": 2, "d": 0}, UNTRAINED),
            "right": ({"a": 2, "b": 2, "c": 0, "d": 0}, {"a": 2, "b": 0, "c": 1, "d": 0}),
        },
        replay_ratio=0.5,
    )


def test_cells_differ_by_the_mean_over_tasks_with_a_paired_interval(
    baseline: Path, protected: Path
):
    (run,) = compare_runs([baseline, protected]).runs
    cells = {(cell.after, cell.domain): cell for cell in run.cells}
    assert [*cells] == [
        (after, domain) for after in (BASE, *LEFT_THEN_RIGHT) for domain in LEFT_THEN_RIGHT
    ]
    # The gains of the four tasks of left are 1, 1/2, 0 and 0.
    cell = cells["right", "left"]
    assert cell.difference == pytest.approx(0.375)
    assert cell.interval is not None
    spread = (0.625**2 + 0.125**2 + 2 * 0.375**2) / 3
    half = t_quantile(0.975, 3) * sqrt(spread / 4)
    assert (cell.interval.low, cell.interval.high) == pytest.approx((0.375 - half, 0.375 + half))
    unchanged = cells[BASE, "left"].interval
    assert unchanged is not None and unchanged.low == unchanged.high == 0


def test_scores_differ_with_the_interval_and_p_value_of_one_comparison(
    baseline: Path, protected: Path
):
    comparison = compare_runs([baseline, protected])
    (run,) = comparison.runs
    assert comparison.scores["backward_transfer"] == pytest.approx(0.125 - 0.75)
    assert run.scores["backward_transfer"] == pytest.approx(0.5 - 0.75)
    found = run.differences["backward_transfer"]
    assert found is not None
    assert found.difference.estimate == pytest.approx(0.375)
    assert found.difference.low < 0.375 < found.difference.high
    assert found.p_holm == found.p_value is not None


def test_tasks_won_and_lost_at_the_end_are_named(baseline: Path, protected: Path):
    (run,) = compare_runs([baseline, protected]).runs
    assert [(each.domain, each.task, each.is_won) for each in run.tasks] == [
        ("left", "a", True),
        ("left", "b", True),
        ("right", "b", False),
    ]
    assert (run.tasks[1].baseline, run.tasks[1].run) == ((1, 2), (2, 2))


def test_settings_that_differ_are_listed_without_the_place_of_the_run(
    baseline: Path, protected: Path
):
    (run,) = compare_runs([baseline, protected]).runs
    assert run.settings == {"replay_ratio": (0.0, 0.5)}


def test_runs_of_another_order_are_compared_before_training_and_at_the_end(
    baseline: Path, tmp_path: Path
):
    reverse = write_run(
        tmp_path / "reverse",
        {
            BASE: (UNTRAINED, UNTRAINED),
            "right": ({"a": 2, "b": 2, "c": 2, "d": 2}, UNTRAINED),
            "left": ({"a": 2, "b": 0, "c": 0, "d": 0}, {"a": 2, "b": 2, "c": 2, "d": 2}),
        },
        domains=("right", "left"),
    )
    (run,) = compare_runs([baseline, reverse]).runs
    found = {(cell.after, cell.domain): cell.difference for cell in run.cells}
    assert found == {
        (BASE, "left"): 0,
        (BASE, "right"): 0,
        ("end", "left"): pytest.approx(1 - 0.125),
        ("end", "right"): pytest.approx(0.25 - 0.625),
    }


def test_runs_evaluated_on_other_tasks_are_refused(baseline: Path, tmp_path: Path):
    others = {"e": 0, "f": 0}
    row = (others, others)
    other = write_run(tmp_path / "other", {BASE: row, "left": row, "right": row})
    with pytest.raises(ConfigError, match=r"'baseline' and 'other', left: 6 task\(s\) were .* one"):
        compare_runs([baseline, other])


def test_runs_of_another_task_release_are_refused(baseline: Path, tmp_path: Path):
    row = (UNTRAINED, UNTRAINED)
    rows = {BASE: row, "left": row, "right": row}
    other = write_run(tmp_path / "other", rows, release="2")
    with pytest.raises(ConfigError, match=r"left tasks of '1' and 'other' those of '2'; .* same"):
        compare_runs([baseline, other])


def test_runs_of_other_domains_are_refused(baseline: Path, tmp_path: Path):
    row = (UNTRAINED, UNTRAINED)
    rows = {BASE: row, "left": row, "up": row}
    other = write_run(tmp_path / "other", rows, domains=("left", "up"))
    with pytest.raises(ConfigError, match=r"left, right and 'other' has left, up; compare runs"):
        compare_runs([baseline, other])


def test_an_unfinished_run_is_refused(baseline: Path, tmp_path: Path):
    row = (UNTRAINED, UNTRAINED)
    other = write_run(tmp_path / "other", {BASE: row, "left": row})
    with pytest.raises(ConfigError, match=r"'other' has evaluations after 1 of 2 stages; .*resume"):
        compare_runs([baseline, other])


def test_the_command_prints_a_table_or_json(
    baseline: Path, protected: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["compare", str(baseline), str(protected)]) == 0
    printed = capsys.readouterr().out
    assert "replay_ratio: 0.0 → 0.5" in printed
    assert "left at the end: won 2: a, b; lost 0" in printed
    assert "right at the end: won 0; lost 1: b" in printed
    assert main(["compare", str(baseline), str(protected), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["baseline"] == "baseline"
    assert found["runs"][0]["scores"]["backward_transfer"] == pytest.approx(-0.25)


def test_two_runs_of_the_same_name_are_told_apart_by_their_paths(
    baseline: Path, protected: Path, tmp_path: Path
):
    moved = protected.rename(tmp_path / "elsewhere")
    (tmp_path / "b").mkdir()
    same = moved.rename(tmp_path / "b" / "baseline")
    comparison = compare_runs([baseline, same])
    assert comparison.baseline == str(baseline)
    assert comparison.runs[0].name == str(same)
