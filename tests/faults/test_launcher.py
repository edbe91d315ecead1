import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grpo_cl.runs.layout import RunDir
from paths import ROOT


def ranks_of(launcher: int) -> list[int]:
    """The child processes of a launcher."""
    listing = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(launcher)], capture_output=True, text=True, check=False
    )
    return [int(line) for line in listing.stdout.split()]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_ranks_end_with_their_launcher(tmp_path: Path) -> None:
    config = ["--config", str(ROOT / "configs" / "toy.yaml"), "--log_dir", str(tmp_path / "run")]
    words = ["-m", "grpo_cl.train", *config, "--num_steps_per_task", "100000"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    launcher = subprocess.Popen(
        [*torchrun, *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
    )
    run = RunDir(tmp_path / "run")
    try:
        while not run.read_metrics().get("task_0/train") and launcher.poll() is None:
            time.sleep(0.1)
        ranks = ranks_of(launcher.pid)
        assert len(ranks) == 2
    finally:
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
    while any(map(is_running, ranks)):  # pytest-timeout ends the test if they go on
        time.sleep(0.1)
    assert len(run.read_metrics()["task_0/train"]) < 100000
