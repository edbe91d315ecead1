"""``python -m torture [--seed N] [--scale X] [--only ATTACK,ATTACK | ATTACK/CASE]``."""

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: a forked child has one thread

from grpo_cl.cli.output import table
from torture.attacks import ATTACKS
from torture.cases import Bench, Case, Outcome, Verdict
from torture.processes import warm_up
from torture.toy import TRAIN

MEMORY = Path("/dev/shm")
"""Where it exists, files are kept there: an fsync costs nothing."""


class Failure(NamedTuple):
    """A case that was lost or is silently wrong."""

    case: str
    verdict: Verdict


class Tally(NamedTuple):
    """The cases of one attack."""

    outcomes: Counter[Outcome]
    failures: list[Failure]
    measured: list[str]
    seconds: float


def main(words: Sequence[str] | None = None) -> int:
    """Run the attacks and print the table; the status is 1 if a case failed."""
    options = _parse(words)
    place = str(MEMORY) if MEMORY.is_dir() else None
    chosen, _, case = options.only.partition("/")
    names = [name for name in chosen.split(",") if name] or list(ATTACKS)
    unknown = [name for name in names if name not in ATTACKS]
    if unknown:
        raise SystemExit(f"unknown attack {unknown[0]!r}; known: {', '.join(ATTACKS)}")
    with tempfile.TemporaryDirectory(prefix="torture-", dir=place) as folder:
        bench = Bench(options.seed, options.scale, Path(folder))
        warm_up(bench.prepared("warm"), TRAIN)
        # Workers are forked here, where this process has one thread and has imported everything.
        with ProcessPoolExecutor(options.jobs, get_context("fork")) as workers:
            futures = [workers.submit(run_attack, name, bench, only=case) for name in names]
            tallies = {name: _tally(future) for name, future in zip(names, futures, strict=True)}
    sys.stdout.write(_report(tallies, options.seed))
    return int(any(tally.failures for tally in tallies.values()))


def run_attack(attack: str, bench: Bench, *, only: str = "") -> Tally:
    """Run the cases of one attack, or the one called ``only``."""
    outcomes: Counter[Outcome] = Counter()
    failures: list[Failure] = []
    measured: list[str] = []
    start = time.monotonic()
    for case in ATTACKS[attack](bench):
        if only and only != case.name:
            continue
        verdict = _attempt(case, bench)
        outcomes[verdict.outcome] += case.tried
        if verdict.outcome is not Outcome.SURVIVED:
            failures.append(Failure(case.name, verdict))
            _say(f"{attack}/{case.name}: {verdict.outcome}: {verdict.detail}")
        elif verdict.detail:
            measured.append(f"{case.name}: {verdict.detail}")
    seconds = time.monotonic() - start
    _say(f"{attack}: {', '.join(f'{count} {outcome}' for outcome, count in outcomes.items())}")
    return Tally(outcomes, failures, measured, seconds)


def _tally(future: Future[Tally]) -> Tally:
    """The cases of an attack; one that cannot be prepared counts as a lost case."""
    error = future.exception()
    if error is None:
        return future.result()
    problem = f"{type(error).__name__}: {error}"[-1000:]
    failure = Failure("preparation", Verdict(Outcome.LOST, problem))
    return Tally(Counter({Outcome.LOST: 1}), [failure], [], 0.0)


def _attempt(case: Case, bench: Bench) -> Verdict:
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        return case.attempt(Path(folder))


def _report(tallies: dict[str, Tally], seed: int) -> str:
    rows: list[Sequence[object]] = [("attack", "tried", *Outcome, "seconds", "repeat")]
    for attack, tally in tallies.items():
        first = tally.failures[0].case if tally.failures else ""
        command = f"SEED={seed} ONLY='{attack}/{first}'" if tally.failures else ""
        counts = [tally.outcomes[outcome] for outcome in Outcome]
        rows.append((attack, sum(counts), *counts, f"{tally.seconds:.0f}", command))
    lines = [f"seed {seed}", table(rows)]
    for attack, tally in tallies.items():
        lines += [f"{attack}, {line}" for line in tally.measured]
        lines += [
            f"{attack}/{failure.case}: {failure.verdict.outcome}: {failure.verdict.detail}"
            for failure in tally.failures
        ]
    return "\n".join(lines) + "\n"


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="torture", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the long form")
    parser.add_argument("--jobs", type=int, default=2, help="attacks at a time")
    parser.add_argument("--only", default="", help="attacks with commas, or ATTACK/CASE")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
