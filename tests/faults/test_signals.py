import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from grpo_cl.runs.layout import RunDir
from grpo_cl.runs.resume import resume_point
from paths import CONFIGS

STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


@contextmanager
def start(log_dir: Path, *settings: str) -> Generator[subprocess.Popen[str]]:
    """A run in a process that is killed at the end of the test."""
    command = [sys.executable, "-m", "grpo_cl", "train", "--config", str(CONFIGS / "toy.yaml")]
    with subprocess.Popen(
        [*command, "--log_dir", str(log_dir), *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=default_signals,
    ) as run:
        try:
            yield run
        finally:
            run.kill()


def default_signals() -> None:
    # A shell starts its background jobs with SIGINT ignored, and a run leaves it so.
    for number in STATUS:
        signal.signal(number, signal.SIG_DFL)


def wait_until(is_reached: Callable[[], bool], run: subprocess.Popen[str]) -> None:
    while not is_reached():
        assert run.poll() is None, run.communicate()[1]
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("number", STATUS, ids=lambda number: number.name)
def test_a_signal_saves_after_the_step_and_names_the_command_that_continues(
    number: signal.Signals, tmp_path: Path
) -> None:
    log_dir = tmp_path / "run"
    with start(log_dir, "--num_steps_per_task", "100000") as run:
        wait_until(lambda: bool(RunDir(log_dir).read_metrics().get("task_0/train")), run)
        run.send_signal(number)
        _, errors = run.communicate()
    assert run.returncode == STATUS[number]
    assert f"ended by {number.name}, saved after" in errors
    assert f"continue with grpo-cl train --resume_from {log_dir}" in errors
    assert "Traceback" not in errors
    assert resume_point(log_dir).checkpoint is not None


@pytest.mark.slow
def test_a_signal_in_an_evaluation_ends_it_before_the_next_domain(tmp_path: Path) -> None:
    log_dir = tmp_path / "run"
    with start(log_dir, "--evaluation.trials", "400", "--num_steps_per_task", "1") as run:
        wait_until(RunDir(log_dir).config.exists, run)
        run.send_signal(signal.SIGTERM)
        _, errors = run.communicate()
    assert run.returncode == STATUS[signal.SIGTERM]
    assert "in an evaluation that the resumed run makes again" in errors
    subprocess.run(
        [sys.executable, "-m", "grpo_cl", "train", "--resume_from", str(log_dir)],
        check=True,
        capture_output=True,
    )


@pytest.mark.slow
def test_the_same_signal_again_ends_the_process_at_once(tmp_path: Path) -> None:
    log_dir = tmp_path / "run"
    with start(log_dir, "--evaluation.trials", "100000") as run:
        wait_until(RunDir(log_dir).config.exists, run)
        while run.poll() is None:  # a signal that arrives too early counts as one with the next
            run.send_signal(signal.SIGINT)
            time.sleep(0.05)
    assert run.returncode in (-signal.SIGINT, STATUS[signal.SIGINT])


@pytest.mark.slow
def test_a_run_whose_output_is_closed_goes_on_to_its_end(tmp_path: Path) -> None:
    log_dir = tmp_path / "run"
    with start(log_dir, "--num_steps_per_task", "4") as run:
        assert run.stdout is not None
        run.stdout.readline()
        run.stdout.close()
        assert run.wait() == 0
    assert len(RunDir(log_dir).read_metrics()["task_1/train"]) == 4
