"""Train what a campaign plans: several processes at once, going on from whatever is there."""

import os
import signal
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess

from grpo_cl.bench.folder import CampaignDir, Outcome
from grpo_cl.bench.plan import Job, Plan
from grpo_cl.bench.worker import PRELOADED, work
from grpo_cl.trainer.interruption import STATUS, Interruption

POLL_S = 0.5
Say = Callable[[str], None]


class Runner:
    """Starts jobs when a process is free and what they go on from is there."""

    def __init__(self, plan: Plan, folder: CampaignDir, *, workers: int, say: Say) -> None:
        self._folder = folder
        self._workers = workers
        self._say = say
        self._jobs = {job.name: job for job in (*plan.trunks, *plan.runs)}
        self._waiting = [job for job in self._jobs.values() if not self._is_finished(job)]
        self._active: dict[str, ForkServerProcess] = {}
        self._done = len(self._jobs) - len(self._waiting)
        self._failed: set[str] = set()
        self._context = get_context("forkserver")

    def run(self) -> None:
        """Train until nothing is left to do; a job that fails ends neither the others nor this."""
        self._prepare()
        with Interruption() as interruption:
            try:
                while self._waiting or self._active:
                    self._start()
                    wait([process.sentinel for process in self._active.values()], timeout=POLL_S)
                    if interruption.is_asked:
                        raise SystemExit(STATUS)
                    self._reap()
            finally:
                for process in self._active.values():
                    process.terminate()  # each finishes its step and saves
                for process in self._active.values():
                    process.join()

    def _prepare(self) -> None:
        if self._done:
            self._say(f"{self._done} of {len(self._jobs)} were finished before")
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # the processes are what runs in parallel
        self._context.set_forkserver_preload(PRELOADED)
        for job in self._waiting:
            self._folder.log(job).parent.mkdir(parents=True, exist_ok=True)

    def _is_finished(self, job: Job) -> bool:
        outcome = self._folder.outcome(job)
        return outcome is not None and outcome.error is None

    def _start(self) -> None:
        for job in list(self._waiting):
            if job.trunk in self._failed:
                self._waiting.remove(job)
                self._fail(job, f"its shared first stage {job.trunk} failed")
            elif len(self._active) < self._workers and self._is_ready(job):
                self._waiting.remove(job)
                self._active[job.name] = self._process(job)

    def _is_ready(self, job: Job) -> bool:
        return job.trunk is None or self._is_finished(self._jobs[job.trunk])

    def _process(self, job: Job) -> ForkServerProcess:
        trunk = self._jobs[job.trunk].config.log_dir if job.trunk else None
        process = self._context.Process(target=work, args=(job, trunk, self._folder.root))
        process.start()
        return process

    def _reap(self) -> None:
        for name, process in list(self._active.items()):
            if process.exitcode is None:
                continue
            del self._active[name]
            job = self._jobs[name]
            if process.exitcode == 0:
                self._done += 1
                self._say(f"[{self._done}/{len(self._jobs)}] {describe(job)}: finished")
            else:
                self._fail(job, self._reason(job, process.exitcode))

    def _fail(self, job: Job, error: str) -> None:
        self._failed.add(job.name)
        self._folder.write_outcome(job, Outcome(error=error))
        self._say(f"{describe(job)}: FAILED, {error}; log: {self._folder.log(job)}")

    def _reason(self, job: Job, status: int) -> str:
        if status < 0:
            return f"killed by {signal.Signals(-status).name}"
        lines = self._folder.log(job).read_text(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return last or f"ended with status {status}"


def describe(job: Job) -> str:
    """A job in words."""
    order = " → ".join(job.config.task_order)
    if job.is_trunk:
        return f"shared first stage {job.config.task_order[0]}, seed {job.config.seed}"
    assert job.entry is not None
    return f"{job.entry.title}, {order}, seed {job.config.seed}"
