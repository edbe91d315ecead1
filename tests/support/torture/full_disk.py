"""A full disk: at every file operation, and as a limit on the size of files."""

import resource
from collections.abc import Callable, Iterator
from pathlib import Path

from torture.cases import Bench, Case, Verdict, crash, lost
from torture.file_operations import Trap, fill_disk
from torture.kills import SMALLEST
from torture.processes import Ended, run_command
from torture.toy import RUN, Reference, finished, reference, resumed

SMALLEST_FILE = 2_000
"""Bytes; what the process says on its standard error, a file too, is shorter."""


def full_disk(bench: Bench) -> Iterator[Case]:
    """Let one file operation fail with ENOSPC, a third of them in turn, then resume."""
    made = reference(bench.prepared("full"), *SMALLEST)
    total = len(made.operations)
    for number in sorted(bench.rng("full").sample(range(total), bench.amount(total // 3))):
        yield Case(f"{number} {made.operations[number]}", _filled_at(made, number))


def largest_file(bench: Bench) -> Iterator[Case]:
    """Limit the size of files (RLIMIT_FSIZE), which libraries in Rust and C++ see too."""
    made = reference(bench.prepared("limit"), *SMALLEST)
    largest = max(path.stat().st_size for path in made.run.rglob("*") if path.is_file())
    rng = bench.rng("limit")
    for number in range(bench.amount(40)):
        size = int(SMALLEST_FILE * (largest / SMALLEST_FILE) ** rng.random())
        yield Case(f"{number} {size} bytes", _limited_to(made, size))


def _filled_at(made: Reference, number: int) -> Callable[[Path], Verdict]:
    def attempt(folder: Path) -> Verdict:
        trap = Trap(folder / RUN, number, fill_disk)
        return _continued(run_command(made.words, folder, prepare=trap.set), folder, made)

    return attempt


def _limited_to(made: Reference, size: int) -> Callable[[Path], Verdict]:
    def attempt(folder: Path) -> Verdict:
        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

        return _continued(run_command(made.words, folder, prepare=limit), folder, made)

    return attempt


def _continued(ended: Ended, folder: Path, made: Reference) -> Verdict:
    if ended.status == 0:
        return finished(ended, folder, made)
    return resumed(folder, made) if ended.is_refusal else lost(crash(ended))
