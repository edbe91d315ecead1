"""User-defined algorithms: those of docs/algorithms.md, and one of another package."""

import re
import runpy
from pathlib import Path

import pytest

from grpo_cl.algorithms import CLAlgorithm, find_algorithm
from grpo_cl.errors import ConfigError
from grpo_cl.trainer import GRPOTrainer
from paths import ROOT
from toy_runs import scores, toy_run

PAGE = ROOT / "docs" / "algorithms.md"

ACME = """
from grpo_cl.algorithms import CLAlgorithm
from grpo_cl.types import Record


class AcmeOptions(Record):
    level: int = 1


class AcmeCL(CLAlgorithm[AcmeOptions]):
    options_type = AcmeOptions

    def telemetry(self):
        return {"cl/level": float(self.options.level)}
"""


def program(heading: str) -> str:
    """The first program under a heading of docs/algorithms.md."""
    section = PAGE.read_text().partition(f"## {heading}\n")[2]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of tensorboard's own imports
def test_the_documented_algorithm_runs_as_written_and_reduces_forgetting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("example.py").write_text(program("A small algorithm"))
    trainer = runpy.run_path("example.py")["trainer"]
    assert isinstance(trainer, GRPOTrainer)
    plain = trainer.config.model_copy(update={"log_dir": tmp_path / "plain"})
    GRPOTrainer(plain).train()
    assert scores(trainer.config.log_dir)[2][0] > scores(plain.log_dir)[2][0] + 0.1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of tensorboard's own imports
def test_the_documented_registration_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("example.py").write_text(program("Write one"))
    runpy.run_path("example.py")
    assert len(scores(Path("runs/small_steps"))) == 3
    assert find_algorithm("small_steps").__name__ == "SmallStepsCL"


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package with an algorithm as entry point."""
    site = tmp_path / "site"
    metadata = site / "acme_cl-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "acme_cl.py").write_text(ACME)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-cl\nVersion: 1.0\n")
    points = "[grpo_cl.algorithms]\nacme = acme_cl:AcmeCL\nreplay = acme_cl:AcmeCL\n"
    (metadata / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(site)


@pytest.mark.usefixtures("acme")
def test_an_algorithm_of_another_package_is_found_by_its_name(tmp_path: Path) -> None:
    trainer = toy_run(
        tmp_path / "run", cl_algorithm="acme", cl_options={"level": 3}, num_steps_per_task=1
    )
    assert type(trainer.cl_algorithm).__module__ == "acme_cl"
    assert trainer.cl_algorithm.telemetry() == {"cl/level": 3.0}


@pytest.mark.usefixtures("acme")
def test_an_entry_point_cannot_replace_a_built_in_algorithm_and_is_listed() -> None:
    assert find_algorithm("replay").__module__ == "grpo_cl.algorithms.replay"
    with pytest.raises(ConfigError, match="known: acme, agem"):
        find_algorithm("none")
    assert issubclass(find_algorithm("acme"), CLAlgorithm)
