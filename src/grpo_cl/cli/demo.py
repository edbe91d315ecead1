"""``grpo-cl demo``: trains the embedded policy on three domains, on all CPU cores."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from grpo_cl.cli.extras import require
from grpo_cl.cli.options import read_config
from grpo_cl.config import TINY

DEFAULTS = {"num_steps_per_task": 8, "evaluation.generated": 20, "learning_rate": 4.25e-4}
"""Fewer steps and test tasks than the policy's defaults, so that two cores need four minutes, and
a higher learning rate, at which an earlier domain is forgotten in so few steps."""

NUM_PROCESSES = (4, 2, 1)
"""Divisors of a step's eight tasks; with more than four processes, some wait for others."""


def demo(arguments: argparse.Namespace) -> int:
    """Train ``tiny`` and print the results."""
    require("torch", "transformers", "inspect_evals")  # said once, not by every process
    cores = len(os.sched_getaffinity(0))
    processes = next(number for number in NUM_PROCESSES if number <= cores)
    log_dir = _unused_dir(arguments.log_dir)
    settings = ["--model_name_or_path", "tiny", "--log_dir", str(log_dir)]
    settings += [f"{name}={value}" for name, value in DEFAULTS.items()]
    # A step has the same tasks on any number of cores.
    settings += ["--batch_size_per_gpu", str(TINY["batch_size_per_gpu"] // processes)]
    read_config([*settings, *arguments.settings])  # refused once, not by every process
    launch = ["torch.distributed.run", f"--nproc_per_node={processes}"]
    # A free rendezvous port, so that two demos can run on one machine.
    launch += ["--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0", "-m", "grpo_cl.train"]
    print(f"starting {processes} training processes for {log_dir}", flush=True)
    command = [sys.executable, "-m", *launch, *settings, *arguments.settings]
    return subprocess.call(command, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _unused_dir(log_dir: Path) -> Path:
    """The directory, or a numbered one beside it if it exists."""
    candidates = (
        log_dir if number == 1 else Path(f"{log_dir}-{number}") for number in range(1, 10_000)
    )
    return next(path for path in candidates if not path.exists())
