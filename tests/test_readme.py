"""What README.md, configs/ and notebooks/ tell people to run, run as written."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_cl.config import GRPOConfig
from grpo_cl.rundir import RunDir

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def blocks() -> list[tuple[str, str]]:
    """The programs of README.md in their order; those of its algorithms are tested elsewhere."""
    text = (ROOT / "README.md").read_text().partition("## Your own algorithm\n")[0]
    return re.findall(r"^```(sh|python)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def run(folder: Path, *command: str) -> str:
    """What a command prints, with the package's commands on the path as after activation."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def cells(notebook: Path) -> list[dict[str, Any]]:
    return json.loads(notebook.read_text())["cells"]


def code(notebook: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in cells(notebook) if cell["cell_type"] == "code"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_commands_and_programs_of_the_readme_run_as_written(tmp_path: Path) -> None:
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    found = blocks()
    assert [language for language, _ in found].count("sh") == 1
    for language, block in found:
        if language == "sh":
            run(tmp_path, "bash", "-euo", "pipefail", "-c", block)
        else:
            run(tmp_path, sys.executable, "-c", block)
    runs = tmp_path / "runs"
    for name in ("first", "replay", "two"):
        assert RunDir(runs / name).report.exists()
    assert (runs / "first" / "curves.png").stat().st_size > 10_000
    exported = (runs / "first" / "successes.jsonl").read_text().splitlines()
    assert exported
    assert all(json.loads(line)["reward"] == 1 for line in exported)


def test_the_example_to_edit_says_what_it_sets() -> None:
    config = runpy.run_path(str(ROOT / "configs" / "grpo_example.py"))["config"]
    assert isinstance(config, GRPOConfig)
    assert config.model_name_or_path == "tiny"
    assert config.rollout.prompt == "compact"  # what tiny needs and the file leaves to it
    assert config.cl_algorithm == "replay"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of tensorboard's own imports
def test_the_example_to_edit_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(ROOT / "configs" / "grpo_example.py"))
    settings = example["config"].model_dump(exclude_unset=True)
    fewer = {"num_steps_per_task": 1, "evaluation": {"generated": 2}, "log_dir": tmp_path / "run"}
    summary = example["main"](GRPOConfig.model_validate(settings | fewer))
    assert [stage["steps"] for stage in summary["stages"]] == [1, 1]
    assert RunDir(tmp_path / "run").report.exists()
    assert "average_performance" in capsys.readouterr().out


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_holds_no_outputs(notebook: Path) -> None:
    found = cells(notebook)
    assert found[0]["cell_type"] == "markdown"
    assert not any(cell.get("outputs") for cell in found)
    assert not any(cell.get("execution_count") for cell in found)


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_runs_from_top_to_bottom(notebook: Path, tmp_path: Path) -> None:
    script = "\n".join(code(notebook))
    assert script.strip()
    run(tmp_path, sys.executable, "-c", script)
    assert list((tmp_path / "runs").iterdir())
