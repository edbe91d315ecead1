"""``grpo-cl evaluate RUN --every_stage``."""

from pathlib import Path

import pytest

from grpo_cl.cli import main
from grpo_cl.cli.stage_matrix import StageMatrix
from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.runs.layout import RunDir
from grpo_cl.storage.files import read_json
from toy_runs import toy_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs") / "toy"
    toy_run(root, num_steps_per_task=4)
    return root


def test_with_the_settings_of_the_run_its_own_matrix_comes_out(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(run), "--every_stage", "--out", str(tmp_path / "m.json")]) == 0
    found = StageMatrix.model_validate(read_json(tmp_path / "m.json"))
    assert found.matrix == RMatrix.load(RunDir(run).r_matrix)
    assert set(found.releases) == {"toy_left", "toy_right"}
    assert "correlation of their changes 1.000 (6 cells)" in capsys.readouterr().out


def test_other_evaluation_settings_give_another_matrix(run: Path, tmp_path: Path) -> None:
    words = ["--every_stage", "--evaluation.max_tasks", "3", "--out", str(tmp_path / "m.json")]
    assert main(["evaluate", str(run), *words]) == 0
    found = StageMatrix.model_validate(read_json(tmp_path / "m.json")).matrix
    cells = [cell for row in found.rows for cell in row.cells.values()]
    assert [row.after for row in found.rows] == ["base", "toy_left", "toy_right"]
    assert {len(cell.tasks) for cell in cells} == {3}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere", "--every_stage"], "needs a run with a finished stage"),
        (["--every_stage"], "name it: evaluate RUN"),
        (["--every_stage", "--model", "openai/gpt-4o"], "a hosted model, which has none"),
    ],
)
def test_what_is_no_run_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_run_with_a_policy_for_each_domain_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy_run(tmp_path / "single", num_steps_per_task=1, cl_algorithm="single")
    assert main(["evaluate", str(tmp_path / "single"), "--every_stage"]) == 2
    assert "evaluates each domain with weights of its own" in capsys.readouterr().err
