import logging
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from grpo_cl.config import GRPOConfig, LoggingConfig
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.experiment_trackers import (
    FailSafeTracker,
    TensorBoardTracker,
    open_trackers,
    require_trackers,
    tracker_names,
)
from grpo_cl.metrics.names import TIMES, time_names
from grpo_cl.metrics.rmatrix import Cell, Drift
from grpo_cl.metrics.tables import Table, markdown
from grpo_cl.runs.layout import RunDir
from grpo_cl.storage.journal import read_journal
from grpo_cl.trainer import GRPOTrainer
from paths import ROOT
from toy_runs import scores, toy_config, toy_run

DRIFT = Drift(
    kl_base=0.1, kl_previous=0.1, distance_base=1.0, start_norm=1.0, tokens=1, is_sampled=True
)
EVENTS = "events.out.tfevents.0000000000.grpo-cl"


def config_with(*trackers: Any, **options: Any) -> GRPOConfig:
    return GRPOConfig(logging=LoggingConfig(trackers=trackers), **options)


def test_tensorboard_reads_the_logged_values(tmp_path: Path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    tracker = TensorBoardTracker(tmp_path)
    tracker.log_config({"seed": 0})
    tracker.log({"train/reward": 0.5, "cl/bwt": -0.25}, 1)
    tracker.log({"train/reward": 0.75}, 2)
    tracker.close()
    read = accumulator.EventAccumulator(str(tmp_path))
    read.Reload()
    points = [(event.step, event.value) for event in read.Scalars("train/reward")]
    assert points == [(1, 0.5), (2, 0.75)]
    assert b'"seed": 0' in read.Tensors("config")[0].tensor_proto.string_val[0]


class Recorder:
    """An own tracker, with tables."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.tables: dict[str, Table] = {}

    def log_config(self, config: object) -> None: ...

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.names |= set(values)

    def log_table(self, name: str, table: Table, step: int) -> None:
        self.tables[name] = table

    def close(self) -> None: ...


def documented_names(*, some: bool) -> set[str]:
    """The names in docs/metrics.md: of every run, or of some runs only."""
    section = (ROOT / "docs" / "metrics.md").read_text().split("## Trackers")[1].split("\n## ")[0]
    every, only_some = section.split("Only in some runs:")
    rows = [
        line.split("|")[1] for line in (only_some if some else every).splitlines() if "|" in line
    ]
    return set(re.findall(r"`((?:train|eval|cl)/[a-zA-Z_/]+)`", "".join(rows)))


def logged_names(root: Path, **options: Any) -> tuple[Recorder, set[str]]:
    """What a run logs; domains are called DOMAIN."""
    recorder = Recorder()
    trainer = GRPOTrainer(toy_config(root, num_steps_per_task=2, **options), trackers=[recorder])
    trainer.train()
    names = {re.sub("/toy_(left|right)/", "/DOMAIN/", name) for name in recorder.names}
    return recorder, names | set(recorder.tables)


def test_a_run_logs_exactly_the_documented_names(tmp_path: Path):
    every, some = documented_names(some=False), documented_names(some=True)
    # Toy tasks have gold actions.
    usual = every | {"train/tool_accuracy", "eval/DOMAIN/tool_accuracy"}
    _, plain = logged_names(tmp_path / "plain", kl_coef=0.0)
    assert plain == usual
    options = {"eval_interval": 1, "evaluation": {"trials": 2, "drift": True}}
    _, more = logged_names(tmp_path / "more", cl_algorithm="ewc", **options)
    drift = {"eval/DOMAIN/kl_base", "eval/DOMAIN/kl_previous"}
    curves = {"cl/stability_gap", "cl/worst_case_performance"}
    assert more - usual - {"cl/penalty", "cl/penalty_ratio"} == {"train/kl"} | drift | curves
    assert more - usual <= some | {"cl/penalty", "cl/penalty_ratio"}
    possible = {f"eval/DOMAIN/{name}" for name in Cell(mean=0.0, tasks={}, drift=DRIFT).numbers()}
    assert possible <= every | some
    assert {time_name for name in TIMES for time_name in time_names({name: 1.0})} <= every | some


def test_tables_have_the_r_matrix_and_the_best_and_worst_episodes(tmp_path: Path):
    recorder, _ = logged_names(tmp_path)
    matrix = recorder.tables["cl/r_matrix"]
    assert matrix.columns == ("after", "toy_left", "toy_right")
    assert [row[0] for row in matrix.rows] == ["base", "toy_left", "toy_right"]
    assert [list(row[1:]) for row in matrix.rows] == scores(tmp_path)
    episodes = recorder.tables["eval/episodes"]
    assert [row[:2] for row in episodes.rows] == [
        *[("toy_right", "toy_left")] * 2,
        *[("toy_right", "toy_right")] * 2,
    ]
    best, worst = episodes.rows[:2]
    assert (best[3], worst[3]) == (1.0, 0.0)
    assert (
        best[5] == 'assistant: choose({"option": "left"})\n\ntool: Chosen.\n\nassistant: ###STOP###'
    )
    text = markdown(Table(("a", "b"), [("x|y\nz", None), ("", 0.25)]))
    assert text == "| a | b |\n| --- | --- |\n| x\\|y<br>z | – |\n|  | 0.250 |"


def test_tensorboard_shows_numbers_times_and_tables_of_a_run(tmp_path: Path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    toy_run(tmp_path, num_steps_per_task=2, logging={"trackers": ("tensorboard",)})
    events = accumulator.EventAccumulator(str(RunDir(tmp_path).tensorboard_dir))
    events.Reload()
    steps = RunDir(tmp_path).read_metrics()["task_0/train"]
    for key, name in [("clip_fraction", "train/clip_ratio/region_mean"), ("kl", "train/kl")]:
        values = [event.value for event in events.Scalars(name)[: len(steps)]]
        assert values == pytest.approx([step[key] for step in steps])
    times = list(read_journal(RunDir(tmp_path).times_journal))
    spent = [record["step_s"] for record in times if record["kind"] == "train"]
    assert [event.value for event in events.Scalars("train/step_time")] == pytest.approx(spent)
    rates = [event.value for event in events.Scalars("train/tokens_per_second")]
    tokens, rollout_s = steps[0]["generated_tokens"], times[2]["rollout_s"]
    assert rates[0] == pytest.approx(tokens / rollout_s)
    tables = [event.tensor_proto.string_val[0].decode() for event in events.Tensors("cl/r_matrix")]
    assert tables[-1].startswith("| after | toy_left | toy_right |\n| --- | --- | --- |\n| base |")


def test_a_resumed_run_replaces_the_points_after_its_first(tmp_path: Path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    first = TensorBoardTracker(tmp_path)
    for step in (1, 2, 3):
        first.log({"loss": float(step)}, step)
    first.close()
    second = TensorBoardTracker(tmp_path)
    second.log({"loss": 20.0}, 2)
    second.close()
    read = accumulator.EventAccumulator(str(tmp_path))
    read.Reload()
    points = [(event.step, event.value) for event in read.Scalars("loss")]
    assert points == [(1, 1.0), (2, 20.0)]


def test_tensorboard_needs_neither_torch_nor_tensorflow(tmp_path: Path):
    code = (
        "import sys; from pathlib import Path; from grpo_cl.metrics.experiment_trackers import *\n"
        f"TensorBoardTracker(Path({str(tmp_path)!r})).close()\n"
        "sys.exit(bool({'torch', 'tensorflow', 'matplotlib'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_full_disk_is_logged_once_and_not_raised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    class FullDisk:
        """Fails after the configuration is logged, like a disk that fills up."""

        closed = 0

        def log_config(self, config: object) -> None: ...

        def log(self, values: object, step: int) -> None:
            with Path("/dev/full").open("w") as disk:
                disk.write("x")

        def close(self) -> None:
            self.closed += 1
            raise OSError("still full")

    inner = FullDisk()
    tracker = FailSafeTracker("tensorboard", inner, (OSError,))
    with caplog.at_level(logging.WARNING):
        tracker.log_config({})
        tracker.log({"loss": 1.0}, 1)
        tracker.log({"loss": 1.0}, 2)
        tracker.close()
    assert [record.getMessage() for record in caplog.records] == [
        "the tracker tensorboard failed and is disabled: [Errno 28] No space left on device"
    ]
    assert inner.closed == 1


def test_an_unexpected_error_is_raised():
    class Broken:
        def log_config(self, config: object) -> None: ...

        def log(self, values: object, step: int) -> None:
            raise ZeroDivisionError

        def close(self) -> None: ...

    with pytest.raises(ZeroDivisionError):
        FailSafeTracker("broken", Broken(), (OSError,)).log({}, 1)


def test_a_tracker_that_cannot_start_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    RunDir(tmp_path).tensorboard_dir.write_text("a file is in the way")
    assert open_trackers(config_with("tensorboard"), tmp_path) == []
    assert "tensorboard could not start" in caplog.text


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_tracker_that_is_not_installed_is_refused(name: str):
    if find_spec(name):
        pytest.skip(f"{name} is installed")
    with pytest.raises(ConfigError, match=f"{name!r} needs a package.*pip install {name}"):
        require_trackers(config_with(name))


def test_a_wandb_project_adds_the_wandb_tracker():
    assert tracker_names(config_with("tensorboard", wandb_project="p")) == (
        "tensorboard",
        "wandb",
    )
    assert tracker_names(config_with("wandb", wandb_project="p")) == ("wandb",)
    assert tracker_names(config_with()) == ()


def test_no_secret_reaches_a_tracker(tmp_path: Path):
    secret = "CANARY-0123456789"
    os.environ["TEST_TRACKERS_API_KEY"] = secret
    try:
        config = config_with(
            "tensorboard", model_name_or_path=f"https://user:{secret}@host/{secret}"
        )
        for tracker in open_trackers(config, tmp_path):
            tracker.log({"loss": 1.0}, 1)
            tracker.close()
    finally:
        del os.environ["TEST_TRACKERS_API_KEY"]
    written = (RunDir(tmp_path).tensorboard_dir / EVENTS).read_bytes()
    assert b"model_name_or_path" in written
    assert b"CANARY" not in written


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_an_optional_tracker_records_without_network(name: str, tmp_path: Path):
    pytest.importorskip(name)
    code = (
        "import sys; from pathlib import Path\n"
        "from grpo_cl.config import GRPOConfig, LoggingConfig\n"
        "from grpo_cl.metrics.experiment_trackers import open_trackers\n"
        f"config = GRPOConfig(logging=LoggingConfig(trackers=({name!r},)))\n"
        f"[tracker] = open_trackers(config, Path({str(tmp_path)!r}))\n"
        "from grpo_cl.metrics.tables import Table\n"
        "tracker.log({'train/reward': 0.5}, 1)\n"
        "tracker.log_table('cl/r_matrix', Table(('after',), [('stage-one',)]), 1)\n"
        "tracker.close()\n"
    )
    secret = "CANARY-0123456789"
    extra = {"TRACKIO_DIR": str(tmp_path / "trackio"), "HOME": str(tmp_path), "X_API_KEY": secret}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | extra, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    contents = [file.read_bytes() for file in files]
    assert any(b"model_name_or_path" in content for content in contents)
    assert any(b"stage-one" in content for content in contents)
    assert not any(secret.encode() in content for content in contents)
