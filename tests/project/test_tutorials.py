"""The tutorials run as written: their files are saved, their `sh` blocks are executed in order."""

import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest

from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.runs import RunDir
from grpo_cl.storage.files import read_json
from html_pages import page_data
from paths import ROOT

BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)


def follow(page: str, folder: Path) -> None:
    """Do in ``folder`` what a reader of docs/tutorials/PAGE.md does."""
    (folder / "configs").symlink_to(ROOT / "configs")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    text = (ROOT / "docs" / "tutorials" / f"{page}.md").read_text()
    for language, title, block in BLOCK.findall(text):
        if title:
            (folder / title).write_text(block)
        elif language == "sh":
            script = ["bash", "-euo", "pipefail", "-c", block]
            done = subprocess.run(
                script, cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{block}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def scores(run: Path) -> list[list[float]]:
    """The R-matrix of a run; every cell was evaluated."""
    rows = RMatrix.load(RunDir(run).r_matrix).scores()
    return [[score for score in row if score is not None] for row in rows]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_new_policy_learns_the_domain_of_the_tutorial(tmp_path: Path) -> None:
    follow("own-domain", tmp_path)
    (before,), (after,) = scores(tmp_path / "runs" / "lights")
    assert before < 0.6
    assert after > before + 0.3
    page = page_data((tmp_path / "lights.html").read_text())
    assert [domain["name"] for domain in page["domains"]] == ["light_board"]
    for row, mean in enumerate((before, after)):
        rewards = [one["reward"] for one in page["episodes"] if one["row"] == row]
        assert fmean(rewards) == pytest.approx(mean)
    messages = [said for one in page["episodes"] for said in one["messages"]]
    calls = [call["name"] for said in messages for call in said.get("calls", ())]
    assert "set_lamp" in calls


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_algorithm_of_the_tutorial_forgets_less_than_its_baseline(tmp_path: Path) -> None:
    follow("own-algorithm", tmp_path)
    plain, own = (scores(tmp_path / "runs" / name)[-1][0] for name in ("sequential", "pull_back"))
    assert own > plain + 0.1
    methods = read_json(tmp_path / "runs" / "campaign" / "results.json")["summary"]["methods"]
    assert [method["label"] for method in methods] == ["sequential", "ewc", "replay", "pull back"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("page", "runs"),
    [
        ("first-result", ["sequential", "replay"]),
        ("own-user", ["hasty"]),
        ("own-reward", ["partial"]),
    ],
)
def test_the_commands_of_a_tutorial_end_with_a_report(
    page: str, runs: list[str], tmp_path: Path
) -> None:
    follow(page, tmp_path)
    assert all(RunDir(tmp_path / "runs" / name).report.exists() for name in runs)
