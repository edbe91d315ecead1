"""``grpo-cl demo``: the embedded policy learns three domains, on every core there is."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

MAX_PROCESSES = 4
"""A step has eight tasks; more processes than half of that wait for each other."""


def demo(arguments: argparse.Namespace) -> int:
    """Train ``tiny`` with the settings it has by itself, then print what it learned."""
    settings = ["--model_name_or_path", "tiny", "--log_dir", str(_free(arguments.log_dir))]
    cores = len(os.sched_getaffinity(0))
    launch = ["torch.distributed.run", f"--nproc_per_node={min(cores, MAX_PROCESSES)}"]
    # A rendezvous of its own, so that two demos on one machine do not meet.
    launch += ["--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0", "-m", "grpo_cl.train"]
    command = [sys.executable, "-m", *launch, *settings, *arguments.settings]
    return subprocess.call(command, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _free(wanted: Path) -> Path:
    """The directory, or one beside it where a run is already."""
    names = (wanted if number == 1 else Path(f"{wanted}-{number}") for number in range(1, 10_000))
    return next(path for path in names if not path.exists())
