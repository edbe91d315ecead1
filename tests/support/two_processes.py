"""Runs a script of this folder as two ranks on one machine."""

import os
import subprocess
import sys

from paths import ROOT, SUPPORT


def run_two_processes(script: str, *arguments: object, timeout_s: float = 280) -> None:
    """Start ``script`` with torchrun; a failure shows the end of its standard error."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    process = subprocess.run(
        [*launcher, str(SUPPORT / script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": f"{SUPPORT}:{ROOT / 'src'}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-3000:]
