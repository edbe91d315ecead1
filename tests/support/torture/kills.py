"""SIGKILL of runs: at every file operation, and at random ones until the run is done."""

from collections.abc import Callable, Iterator
from pathlib import Path

from torture.cases import Bench, Case, Verdict, crash, lost
from torture.file_operations import Trap
from torture.processes import run_command
from torture.toy import ALGORITHMS, RESUME, RUN, Reference, finished, reference, resumed

SMALLEST = ("--num_steps_per_task", "1", "--logging.keep_checkpoints", "1")


def kill_at_operations(bench: Bench) -> Iterator[Case]:
    """Kill a run at every file operation, then resume it."""
    made = reference(bench.prepared("operations"), *SMALLEST)
    for number in visible(bench, made.operations):
        yield Case(f"{number} {made.operations[number]}", _killed_at(made, number))


def kill_again_and_again(bench: Bench) -> Iterator[Case]:
    """Kill a run of some algorithm, and each of its resumed runs, at random operations."""
    rng = bench.rng("again")
    for name in rng.sample(ALGORITHMS, min(len(ALGORITHMS), bench.amount(len(ALGORITHMS)))):
        made = reference(bench.prepared(f"again_{name}"), "--cl_algorithm", name)
        for repeat in range(bench.amount(3)):
            seed = rng.randrange(2**32)
            yield Case(f"{name} {repeat}", _killed_often(bench, made, seed))


def kill_at_times(bench: Bench) -> Iterator[Case]:
    """Kill a run after random times; most of them are spent in evaluations."""
    settings = ("--evaluation.trials", "40", "--evaluation.max_tasks", "8")
    made = reference(bench.prepared("times"), *settings)
    rng = bench.rng("times")
    for number in range(bench.amount(30)):
        delays = [0.05 + rng.random() * rng.choice((0.3, 1.0, 3.0)) for _ in range(4)]
        yield Case(str(number), _killed_after(made, delays))


def visible(bench: Bench, operations: list[str]) -> list[int]:
    """Numbers of operations, all in the long form; a kill cannot tell whether data was synced."""
    found = [number for number, name in enumerate(operations) if name != "fsync"]
    return sorted(bench.rng("operations").sample(found, bench.amount(len(found))))


def _killed_at(made: Reference, number: int) -> Callable[[Path], Verdict]:
    def attempt(folder: Path) -> Verdict:
        trap = Trap(folder / RUN, number)
        killed = run_command(made.words, folder, prepare=trap.set)
        return lost(crash(killed)) if killed.status > 0 else resumed(folder, made)

    return attempt


def _killed_often(bench: Bench, made: Reference, seed: int) -> Callable[[Path], Verdict]:
    def attempt(folder: Path) -> Verdict:
        rng = bench.rng(seed)
        for _ in range(4):
            trap = Trap(folder / RUN, rng.randrange(len(made.operations)))
            has_begun = (folder / RUN / "config.json").exists()
            words = RESUME if has_begun else made.words
            ended = run_command(words, folder, prepare=trap.set)
            if ended.status >= 0:
                return finished(ended, folder, made)
        return resumed(folder, made)

    return attempt


def _killed_after(made: Reference, delays: list[float]) -> Callable[[Path], Verdict]:
    def attempt(folder: Path) -> Verdict:
        for delay in delays:
            has_begun = (folder / RUN / "config.json").exists()
            words = RESUME if has_begun else made.words
            ended = run_command(words, folder, kill_after_s=delay)
            if ended.status >= 0:
                return finished(ended, folder, made)
        return resumed(folder, made)

    return attempt
