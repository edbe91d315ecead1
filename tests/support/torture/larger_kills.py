"""SIGKILL of runs that take longer: the embedded policy, fine-tuning, campaigns, ranks."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from grpo_cl.runs.layout import RunDir
from paths import SUPPORT
from torture.cases import Bench, Case, Verdict, crash, lost, survived, wrong
from torture.file_operations import Trap
from torture.kills import visible
from torture.processes import run_command, run_program
from torture.toy import (
    RESUME,
    RUN,
    TRAIN,
    Reference,
    difference,
    finished,
    reference,
    resumed,
)

TINY = (
    *("train", "--model_name_or_path", "tiny", "--log_dir", RUN),
    *("--task_order", "[airline, telecom]", "--num_steps_per_task", "1", "--lora.r", "4"),
    *("--batch_size_per_gpu", "2", "--num_samples_per_prompt", "2", "--rollout.max_turns", "2"),
    *("--max_new_tokens", "16", "--evaluation.trials", "1", "--evaluation.max_tasks", "1"),
    *("--evaluation.generated", "2", "--tasks.generated", "4"),
    *("--logging.save_interval", "1", "--logging.trackers", "[]"),
)
SFT = (
    *("sft", "--new_tiny", "--width", "64", "--layers", "1", "--out", RUN, "--domain", "telecom"),
    *("--count", "6", "--steps", "4", "--batch_size", "2", "--save_interval", "1"),
    *("--workers", "1"),
)
SFT_RESUME = ("sft", "--resume_from", RUN)
CAMPAIGN = str(SUPPORT / "bench_campaigns.py")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "grpo_cl")


def kill_embedded_policy(bench: Bench) -> Iterator[Case]:
    """Kill runs of the embedded policy at file operations, then resume them."""
    made = reference(bench.prepared("tiny"), words=TINY)
    numbers = visible(bench, made.operations)
    for number in bench.rng("tiny").sample(numbers, min(len(numbers), bench.amount(6))):
        yield Case(f"{number} {made.operations[number]}", _killed_at(made, number, RESUME))


def kill_sft(bench: Bench) -> Iterator[Case]:
    """Kill a fine-tuning at file operations, then resume it."""
    made = reference(bench.prepared("sft"), words=SFT)
    numbers = visible(bench, made.operations)
    for number in bench.rng("sft").sample(numbers, min(len(numbers), bench.amount(10))):
        yield Case(f"{number} {made.operations[number]}", _killed_at(made, number, SFT_RESUME))


def kill_campaign(bench: Bench) -> Iterator[Case]:
    """Kill a campaign with its runs after random times, then start it again."""
    folder = bench.prepared("campaign")
    ended = run_program([CAMPAIGN, "out"], folder)
    assert ended.status == 0, ended.errors
    rng = bench.rng("campaign")
    for number in range(bench.amount(2)):
        delays = [rng.uniform(4, 30) for _ in range(3)]
        yield Case(str(number), _killed_campaign(folder / "out", delays))


def kill_rank(bench: Bench) -> Iterator[Case]:
    """Kill one of two ranks after a random time, then resume with two."""
    settings = ("--batch_size_per_gpu", "1", "--num_steps_per_task", "60")
    words = (*TORCHRUN, *TRAIN, *settings)
    folder = bench.prepared("ranks")
    ended = run_program(words, folder)
    assert ended.status == 0, ended.errors
    made = Reference(words, folder, [])
    rng = bench.rng("ranks")
    for number in range(bench.amount(3)):
        rank, steps = rng.randrange(2), rng.randrange(1, 60)
        yield Case(f"{number} rank {rank} after {steps} steps", _killed_rank(made, rank, steps))


def _killed_at(made: Reference, number: int, resume: tuple[str, ...]) -> Callable[[Path], Verdict]:
    def attempt(folder: Path) -> Verdict:
        trap = Trap(folder / RUN, number)
        killed = run_command(made.words, folder, prepare=trap.set)
        if killed.status >= 0:
            return lost(f"it was not killed: {crash(killed)}")
        if resume == RESUME:
            return resumed(folder, made)
        ended = run_command(resume, folder)
        if ended.is_refusal and "--out" in ended.errors:  # killed before its settings were written
            ended = run_command((*made.words, "--overwrite"), folder)
        return finished(ended, folder, made)

    return attempt


def _killed_campaign(unbroken: Path, delays: list[float]) -> Callable[[Path], Verdict]:
    def attempt(folder: Path) -> Verdict:
        for delay in delays:
            run_program([CAMPAIGN, "out"], folder, kill_after_s=delay)
        ended = run_program([CAMPAIGN, "out"], folder)
        if ended.status != 0:
            return lost(crash(ended))
        runs = sorted(path.parent.relative_to(unbroken) for path in unbroken.rglob("r_matrix.json"))
        found = (difference(folder / "out" / run, unbroken / run) for run in runs)
        different = next(filter(None, found), None)
        return wrong(different) if different else survived()

    return attempt


def _killed_rank(made: Reference, rank: int, steps: int) -> Callable[[Path], Verdict]:
    def attempt(folder: Path) -> Verdict:
        run = RunDir(folder / RUN)
        launcher = subprocess.Popen(
            [sys.executable, *made.words],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            while launcher.poll() is None and len(_steps(run)) < steps:
                time.sleep(0.02)
            victims = _children(launcher.pid)
            if len(victims) > rank:
                os.kill(victims[rank], signal.SIGKILL)
            launcher.wait(120)
        except subprocess.TimeoutExpired:
            return lost("the other rank waits forever for the killed one")
        finally:
            launcher.kill()
            launcher.wait()
        ended = run_program((*TORCHRUN, *RESUME), folder)
        return finished(ended, folder, made)

    return attempt


def _steps(run: RunDir) -> list[object]:
    if not run.metrics_journal.exists():
        return []
    return [line for line in run.metrics_journal.read_bytes().splitlines() if b"/train" in line]


def _children(pid: int) -> list[int]:
    listing = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return sorted(int(line) for line in listing.stdout.split())
