import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from grpo_cl.cli.power import power
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.power import Design
from grpo_cl.metrics.rmatrix import Cell, RMatrix
from grpo_cl.storage.files import write_json


def arguments(**given: Any) -> argparse.Namespace:
    absent = {**dict.fromkeys(Design.model_fields), "effect": None, "runs": (), "json": False}
    return argparse.Namespace(**{**absent, **given})


def test_a_design_is_printed_with_standard_errors_and_detectable_differences(
    capsys: pytest.CaptureFixture[str],
):
    assert power(arguments(seeds=5, trials=8, comparisons=7, effect=0.1)) == 0
    printed = capsys.readouterr().out
    assert "5 seed(s) of each method, 8 trial(s) of 20, 40, 40 test tasks." in printed
    assert "backward transfer    0.025" in printed
    assert "divided by 7 comparisons" in printed
    assert "correlated by 1.00 over domains (design effect 3.00" in printed
    assert "A difference of 0.1 in backward transfer needs 8 seeds of each method." in printed


def test_one_seed_detects_no_difference_between_methods(capsys: pytest.CaptureFixture[str]):
    assert power(arguments(seeds=1)) == 0
    assert "With one seed no difference between methods is detectable" in capsys.readouterr().out


def test_json_has_design_scores_and_seeds(capsys: pytest.CaptureFixture[str]):
    assert power(arguments(tasks=[30, 30], json=True, effect=1e-5)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["design"]["tasks"] == [30, 30]
    assert set(found["scores"]) == {
        "a cell of 30 tasks",
        "average performance",
        "backward transfer",
    }
    assert found["seeds"] == {"average performance": None, "backward transfer": None}


def test_past_runs_override_defaults_and_flags_override_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for name, counts in (("one", (4, 4, 0, 0)), ("two", (4, 4, 4, 0))):
        tasks = {str(number): (count, 4) for number, count in enumerate(counts)}
        cell = Cell(mean=sum(counts) / 16, tasks=tasks)
        matrix = RMatrix(domains=("a",)).with_cell("a", "a", cell)
        write_json(tmp_path / name / "r_matrix.json", matrix.to_json())
    runs = (tmp_path / "one", tmp_path / "two" / "r_matrix.json")
    assert power(arguments(runs=runs, level=0.5, json=True)) == 0
    design = json.loads(capsys.readouterr().out)["design"]
    assert (design["tasks"], design["trials"], design["level"]) == ([4], 4, 0.5)
    assert design["seed_sd"] == pytest.approx(0.25 / 2**0.5)
    assert power(arguments(runs=runs)) == 0
    assert "unless given: tasks, trials, level, task_spread, seed_sd." in capsys.readouterr().out


def test_an_invalid_design_names_its_flag():
    with pytest.raises(ConfigError, match=r"--level: .*less than 1 \(got 2\)"):
        power(arguments(level=2))
