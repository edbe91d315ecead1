import logging
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from grpo_cl.config import GRPOConfig, LoggingConfig
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.trackers import (
    Guarded,
    TensorBoardTracker,
    chosen_trackers,
    open_trackers,
    require_trackers,
)
from grpo_cl.rundir import RunDir

EVENTS = "events.out.tfevents.0000000000.grpo-cl"


def config_with(*trackers: Any, **options: Any) -> GRPOConfig:
    return GRPOConfig(logging=LoggingConfig(trackers=trackers), **options)


def test_tensorboard_reads_what_was_logged(tmp_path: Path):
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
        "import sys; from pathlib import Path; from grpo_cl.metrics.trackers import *\n"
        f"TensorBoardTracker(Path({str(tmp_path)!r})).close()\n"
        "sys.exit(bool({'torch', 'tensorflow', 'matplotlib'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_full_disk_is_logged_once_and_never_raised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    class FullDisk:
        """Works until the configuration is shown, like a disk that fills up."""

        closed = 0

        def log_config(self, config: object) -> None: ...

        def log(self, values: object, step: int) -> None:
            with Path("/dev/full").open("w") as disk:
                disk.write("x")

        def close(self) -> None:
            self.closed += 1
            raise OSError("still full")

    inner = FullDisk()
    tracker = Guarded("tensorboard", inner, (OSError,))
    with caplog.at_level(logging.WARNING):
        tracker.log_config({})
        tracker.log({"loss": 1.0}, 1)
        tracker.log({"loss": 1.0}, 2)
        tracker.close()
    assert [record.getMessage() for record in caplog.records] == [
        "the tracker tensorboard failed and is left out from now on: "
        "[Errno 28] No space left on device"
    ]
    assert inner.closed == 1


def test_an_error_that_is_not_the_trackers_is_not_hidden():
    class Broken:
        def log_config(self, config: object) -> None: ...

        def log(self, values: object, step: int) -> None:
            raise ZeroDivisionError

        def close(self) -> None: ...

    with pytest.raises(ZeroDivisionError):
        Guarded("broken", Broken(), (OSError,)).log({}, 1)


def test_a_tracker_that_cannot_start_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    RunDir(tmp_path).tensorboard_dir.write_text("a file is in the way")
    assert open_trackers(config_with("tensorboard"), tmp_path) == []
    assert "tensorboard could not start" in caplog.text


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_tracker_that_is_not_installed_is_one_sentence(name: str):
    if find_spec(name):
        pytest.skip(f"{name} is installed")
    with pytest.raises(ConfigError, match=f"{name!r} needs a package.*pip install {name}"):
        require_trackers(config_with(name))


def test_naming_a_wandb_project_chooses_wandb():
    assert chosen_trackers(config_with("tensorboard", wandb_project="p")) == (
        "tensorboard",
        "wandb",
    )
    assert chosen_trackers(config_with("wandb", wandb_project="p")) == ("wandb",)
    assert chosen_trackers(config_with()) == ()


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
        "from grpo_cl.metrics.trackers import open_trackers\n"
        f"config = GRPOConfig(logging=LoggingConfig(trackers=({name!r},)))\n"
        f"[tracker] = open_trackers(config, Path({str(tmp_path)!r}))\n"
        "tracker.log({'train/reward': 0.5}, 1)\ntracker.close()\n"
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
    assert not any(secret.encode() in content for content in contents)
