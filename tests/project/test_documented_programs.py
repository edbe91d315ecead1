"""Commands and programs of docs/how-to/, configs/, examples/ and notebooks/ run as written."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import minimal_grpo
from grpo_cl.config import GRPOConfig
from grpo_cl.runs.layout import RunDir
from paths import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
RUNS = ("first", "replay", "two")


PAGES = {"sh": "command-line.md", "python": "python.md"}


def blocks(language: str) -> list[str]:
    """The code blocks of a language, from the page that has them."""
    text = (ROOT / "docs" / "how-to" / PAGES[language]).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands(run_name: str) -> str:
    """The shell commands of one run directory, with the variables they use."""
    (block,) = blocks("sh")
    lines = block.splitlines()
    assert all("runs/" in line or "=" in line or not line or line[0] == "#" for line in lines)
    chosen = [line for line in lines if f"runs/{run_name}" in line or line.startswith("short=")]
    return "\n".join(chosen)


def run(folder: Path, *command: str) -> str:
    """The output of a command, with the package's commands on the path as after activation."""
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


def test_every_training_command_of_the_page_is_covered_here() -> None:
    (block,) = blocks("sh")
    fork = "ewc"  # among the commands of runs/first
    assert set(re.findall(r"runs/(\w+)", block)) == {*RUNS, fork}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("run_name", RUNS)
def test_training_commands_run_as_written(run_name: str, tmp_path: Path) -> None:
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    run(tmp_path, "bash", "-euo", "pipefail", "-c", commands(run_name))
    assert RunDir(tmp_path / "runs" / run_name).report.exists()
    readers = [block for block in blocks("python") if f"runs/{run_name}/" in block]
    for block in readers:
        run(tmp_path, sys.executable, "-c", block)
    if run_name == "first":
        assert len(readers) == 1
        folder = tmp_path / "runs" / "first"
        assert (folder / "curves.png").stat().st_size > 10_000
        exported = (folder / "successes.jsonl").read_text().splitlines()
        assert exported
        assert all(json.loads(line)["reward"] == 1 for line in exported)


@pytest.mark.slow
@pytest.mark.parametrize(
    "block", [block for block in blocks("python") if not any(f"runs/{r}/" in block for r in RUNS)]
)
def test_python_programs_run_as_written(block: str, tmp_path: Path) -> None:
    assert run(tmp_path, sys.executable, "-c", block).strip()


def test_minimal_example_is_short_and_makes_a_real_update(
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = Path(minimal_grpo.__file__).read_text()
    assert len(source.splitlines()) <= 250
    before, after = minimal_grpo.train(steps=2, seed=0)
    assert 0 <= before < 0.2
    assert after != before
    assert "step 2: reward" in capsys.readouterr().out


@pytest.mark.slow
def test_minimal_example_learns_to_repair_phones() -> None:
    before, after = minimal_grpo.train(steps=80, seed=0)
    assert before < 0.1
    assert after > 0.4


def test_example_config_has_the_documented_settings() -> None:
    config = runpy.run_path(str(ROOT / "configs" / "grpo_example.py"))["config"]
    assert isinstance(config, GRPOConfig)
    assert config.model_name_or_path == "tiny"
    assert config.rollout.prompt == "compact"  # a default of `tiny` that the file does not repeat
    assert config.cl_algorithm == "replay"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # imports of tensorboard
def test_example_config_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(ROOT / "configs" / "grpo_example.py"))
    settings = example["config"].model_dump(exclude_unset=True)
    fewer = {"num_steps_per_task": 1, "evaluation": {"generated": 2}, "log_dir": tmp_path / "run"}
    summary = example["main"](GRPOConfig.model_validate(settings | fewer))
    assert [stage["steps"] for stage in summary["stages"]] == [1, 1]
    assert RunDir(tmp_path / "run").report.exists()
    assert "average_performance" in capsys.readouterr().out


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_notebook_is_committed_with_its_outputs(notebook: Path) -> None:
    found = cells(notebook)
    assert found[0]["cell_type"] == "markdown"
    outputs = [output for cell in found for output in cell.get("outputs", ())]
    assert outputs
    assert not any(output["output_type"] == "error" for output in outputs)
    assert not re.search(r"/(root|home|tmp|work)/", json.dumps(outputs))  # nobody else's paths


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_notebook_runs_from_top_to_bottom(notebook: Path, tmp_path: Path) -> None:
    assert run(tmp_path, sys.executable, "-c", "\n".join(code(notebook))).strip()
