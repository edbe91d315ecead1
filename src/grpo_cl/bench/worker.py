"""What one process of a campaign does: a run, or the first stage that several share."""

import fcntl
import os
import sys
import threading
from multiprocessing import parent_process
from multiprocessing.connection import wait
from pathlib import Path

from grpo_cl.bench.branch import branch, train_trunk
from grpo_cl.bench.folder import CampaignDir, Outcome
from grpo_cl.bench.plan import Job
from grpo_cl.rundir import RunDir
from grpo_cl.trainer import GRPOTrainer
from grpo_cl.trainer.settling import settle

PRELOADED = ["grpo_cl.bench.worker", "grpo_cl.policy.runtime"]
"""Modules that take seconds to import; the processes of a campaign share that."""


def work(job: Job, trunk: Path | None, root: Path) -> None:
    """Begin or go on with a job, and say when it is finished.

    Everything printed goes to the job's log. The log is held until the process ends, so that a
    campaign that was killed and started again never has two processes in one run directory.
    """
    _end_with_parent()
    settle()
    folder = CampaignDir(root)
    log = folder.log(job).open("a")
    fcntl.flock(log, fcntl.LOCK_EX)
    os.dup2(log.fileno(), sys.stdout.fileno())
    os.dup2(log.fileno(), sys.stderr.fileno())
    run = RunDir(job.config.log_dir)
    if trunk is not None and not run.root.exists():
        branch(trunk, job.config)
    begun = {"resume_from": run.root} if run.config.exists() else {}
    config = job.config.model_copy(update=begun)
    if job.is_trunk:
        train_trunk(config)
    else:
        GRPOTrainer(config).train()
    folder.write_outcome(job, Outcome())


def _end_with_parent() -> None:
    """Die with the campaign: what is left can be gone on from, two at work on it cannot."""
    parent = parent_process()
    assert parent is not None, "a worker is started by a campaign"

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
