import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from grpo_cl.cli import main
from grpo_cl.runs.layout import RunDir
from grpo_cl.storage.lock import locked
from toy_runs import toy_run

COMMAND = [sys.executable, "-m", "grpo_cl"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("watched") / "run"
    toy_run(root, num_steps_per_task=2, evaluation={"max_tasks": 1})
    return root


def test_a_finished_run_is_shown_with_its_matrix(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["watch", str(finished)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("before training: toy_left reward ")
    assert any(line.startswith("toy_right 2/2, step 2/2: reward ") for line in lines)
    assert any(line.startswith("after toy_left: toy_right reward ") for line in lines)
    assert any(line.startswith("base ") for line in lines)
    assert "the run is complete" in lines[-1]


def test_a_run_whose_process_died_is_said_with_the_way_to_continue(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "run"
    shutil.copytree(finished, root)
    journal = RunDir(root).metrics_journal
    lines = journal.read_text().splitlines(keepends=True)
    until = next(index for index, line in enumerate(lines) if "task_1/train" in line)
    journal.write_text("".join(lines[:until]))
    for checksums in root.glob(f"{journal.name}.*"):
        checksums.unlink()
    capsys.readouterr()
    assert main(["watch", str(root)]) == 1
    captured = capsys.readouterr()
    assert "has ended after 2 of 4 steps" in captured.err
    assert f"--resume_from {root}" in captured.err


def test_a_run_that_goes_on_is_followed_until_its_process_ends(finished: Path) -> None:
    watching = [*COMMAND, "watch", str(finished)]
    with ExitStack() as process_of_the_run:
        process_of_the_run.enter_context(locked(finished, remedy="stop it"))
        with subprocess.Popen(watching, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("before training: toy_left")
            once = subprocess.run([*watching, "--once"], capture_output=True, text=True, check=True)
            assert "the run is complete" not in once.stdout
            assert process.poll() is None
            process_of_the_run.close()
            assert "the run is complete" in process.stdout.read()
    assert process.returncode == 0


@pytest.mark.slow
def test_a_killed_run_ends_the_watch(tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = "--model_name_or_path tabular --task_order toy_left --num_steps_per_task 100000"
    train = subprocess.Popen(
        [*COMMAND, "train", *settings.split(), "--log_dir", str(run)], stdout=subprocess.DEVNULL
    )
    watch = None
    try:
        while not RunDir(run).times_journal.exists():
            assert train.poll() is None
            time.sleep(0.1)
        watch = subprocess.Popen(
            [*COMMAND, "watch", str(run)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert watch.stdout is not None
        assert watch.stdout.readline().startswith("before training")
        train.send_signal(signal.SIGKILL)
        _, errors = watch.communicate()
        assert watch.returncode == 1
        assert "the process of this run has ended after" in errors
    finally:
        train.kill()
        train.wait()
        if watch is not None:
            watch.kill()
            watch.wait()


def test_a_folder_that_is_no_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", str(tmp_path)]) == 2
    assert "is not a run directory" in capsys.readouterr().err
