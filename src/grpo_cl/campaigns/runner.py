"""Run a campaign: train its jobs in worker processes, then write its results and its page."""

import fcntl
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import NamedTuple

from grpo_cl.campaigns.campaign import Campaign
from grpo_cl.campaigns.directory import CampaignDir, Outcome
from grpo_cl.campaigns.page import CampaignReport, page
from grpo_cl.campaigns.plan import Job, Plan, make_plan
from grpo_cl.campaigns.results import CampaignResults, collect_results
from grpo_cl.campaigns.results_file import write_results
from grpo_cl.campaigns.shared_stage import start_from_stage, train_first_stage
from grpo_cl.campaigns.summary import Summary, summarize
from grpo_cl.report import write_report
from grpo_cl.runs.layout import RunDir
from grpo_cl.storage.files import write_file
from grpo_cl.storage.parent_process import exit_with_parent
from grpo_cl.trainer import GRPOTrainer
from grpo_cl.trainer.process import Interruption

POLL_S = 0.5
PRELOADED = ["grpo_cl.campaigns.runner", "grpo_cl.policy.runtime"]
"""Modules that take seconds to import; the fork server imports them once for all workers."""
Report = Callable[[str], None]
"""Shows a line of progress."""


class FinishedCampaign(NamedTuple):
    """The results of a campaign."""

    directory: CampaignDir
    results: CampaignResults
    summary: Summary

    @property
    def is_complete(self) -> bool:
        """Whether every run finished."""
        return all(run.error is None for run in self.results.runs)


def run_campaign(
    campaign: Campaign, *, report: Report, report_only: bool = False
) -> FinishedCampaign:
    """Train the runs of a campaign that are not finished, and write its results and its page.

    With ``report_only`` nothing is trained: results and page are those of the finished runs.
    """
    plan = make_plan(campaign)
    directory = CampaignDir(campaign.out)
    with directory.locked():
        directory.check_fingerprints([*plan.shared_stages, *plan.runs])
        if not report_only:
            Runner(plan, directory, workers=campaign.workers, report=report).run()
        results = collect_results(campaign, plan, directory)
        summary = summarize(campaign, results)
        campaign_report = CampaignReport(campaign, plan, results, summary)
        write_results(directory, campaign_report)
        for job in plan.runs:
            if job.name in results.times and not RunDir(job.config.log_dir).report.exists():
                write_report(job.config.log_dir)
        write_file(directory.report, [page(campaign_report)])
    return FinishedCampaign(directory, results, summary)


class Runner:
    """Starts a job when a worker is free and the shared stage that it continues is trained."""

    def __init__(self, plan: Plan, directory: CampaignDir, *, workers: int, report: Report) -> None:
        self._directory = directory
        self._workers = workers
        self._report = report
        self._jobs = {job.name: job for job in (*plan.shared_stages, *plan.runs)}
        waiting = [job for job in self._jobs.values() if not directory.is_finished(job)]
        # A campaign that is cut off then has whole seeds, which can be compared.
        self._waiting = sorted(waiting, key=lambda job: job.config.seed)
        self._active: dict[str, ForkServerProcess] = {}
        self._num_finished = len(self._jobs) - len(self._waiting)
        self._failed: set[str] = set()
        self._context = get_context("forkserver")

    def run(self) -> None:
        """Train until no job is left; a job that fails stops neither the others nor the runner."""
        self._prepare()
        with Interruption() as interruption:
            try:
                while self._waiting or self._active:
                    self._start_jobs()
                    wait([process.sentinel for process in self._active.values()], timeout=POLL_S)
                    if interruption.is_requested:
                        interruption.end("with the runs in progress saved", "the same command")
                    self._reap()
            finally:
                for process in self._active.values():
                    process.terminate()  # each finishes its step and saves
                for process in self._active.values():
                    process.join()

    def _prepare(self) -> None:
        if self._num_finished:
            self._report(f"{self._num_finished} of {len(self._jobs)} were finished before")
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # parallelism is over processes
        self._context.set_forkserver_preload(PRELOADED)
        for job in self._waiting:
            self._directory.log(job).parent.mkdir(parents=True, exist_ok=True)

    def _start_jobs(self) -> None:
        for job in list(self._waiting):
            if job.shared_stage in self._failed:
                self._waiting.remove(job)
                self._fail(job, f"its shared first stage {job.shared_stage} failed")
            elif len(self._active) < self._workers and self._is_ready(job):
                self._waiting.remove(job)
                self._active[job.name] = self._start_process(job)

    def _is_ready(self, job: Job) -> bool:
        stage = job.shared_stage
        return stage is None or self._directory.is_finished(self._jobs[stage])

    def _start_process(self, job: Job) -> ForkServerProcess:
        stage = job.shared_stage
        stage_dir = self._jobs[stage].config.log_dir if stage else None
        process = self._context.Process(target=work, args=(job, stage_dir, self._directory.root))
        process.start()
        return process

    def _reap(self) -> None:
        for name, process in list(self._active.items()):
            if process.exitcode is None:
                continue
            del self._active[name]
            job = self._jobs[name]
            if process.exitcode == 0:
                self._num_finished += 1
                progress = f"[{self._num_finished}/{len(self._jobs)}]"
                self._report(f"{progress} {describe(job)}: finished")
            else:
                self._fail(job, self._failure(job, process.exitcode))

    def _fail(self, job: Job, error: str) -> None:
        self._failed.add(job.name)
        self._directory.write_outcome(job, Outcome(error=error))
        self._report(f"{describe(job)}: FAILED, {error}; log: {self._directory.log(job)}")

    def _failure(self, job: Job, status: int) -> str:
        if status < 0:
            return f"killed by {signal.Signals(-status).name}"
        lines = self._directory.log(job).read_text(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return last or f"ended with status {status}"


def work(job: Job, stage_dir: Path | None, root: Path) -> None:
    """Start or resume a job in this process, and write its outcome when it is finished.

    All output goes to the job's log. The log stays locked until the process ends, so that a
    campaign that was killed and restarted never has two processes in one run directory.
    """
    exit_with_parent()
    directory = CampaignDir(root)
    log = directory.log(job).open("a")
    fcntl.flock(log, fcntl.LOCK_EX)
    os.dup2(log.fileno(), sys.stdout.fileno())
    os.dup2(log.fileno(), sys.stderr.fileno())
    run = RunDir(job.config.log_dir)
    if stage_dir is not None and not run.root.exists():
        start_from_stage(stage_dir, job.config)
    resume = {"resume_from": run.root} if run.config.exists() else {}
    config = job.config.model_copy(update=resume)
    if job.is_shared_stage:
        train_first_stage(config)
    else:
        GRPOTrainer(config).train()
    directory.write_outcome(job, Outcome())


def describe(job: Job) -> str:
    """A job in words."""
    order = " → ".join(job.config.task_order)
    if job.is_shared_stage:
        return f"shared first stage {job.config.task_order[0]}, seed {job.config.seed}"
    assert job.entry is not None
    return f"{job.entry.title}, {order}, seed {job.config.seed}"
