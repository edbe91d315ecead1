"""Files of a run that are damaged one by one: named, or harmless, never silently different."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from grpo_cl.runs.checkpoints import verify
from torture.cases import Bench, Case, Verdict, crash, lost, survived, wrong
from torture.file_operations import Trap
from torture.processes import run_command
from torture.toy import RESUME, RUN, Reference, copied, difference, reference

Damage = Callable[[Path, Random], None]
UNTOUCHED = frozenset({"lock", "times.jsonl"})
"""Files that a refused command may change."""
EVALUATE = ("evaluate", RUN, "--out", "evaluation.json")


def flip_bit(path: Path, rng: Random) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def truncate(path: Path, rng: Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(max(1, len(content)))])


def delete(path: Path, rng: Random) -> None:
    del rng
    path.unlink()


def empty(path: Path, rng: Random) -> None:
    del rng
    path.write_bytes(b"")


DAMAGES: dict[str, Damage] = {"flip": flip_bit, "cut": truncate, "delete": delete, "empty": empty}


def damage_run(bench: Bench) -> Iterator[Case]:
    """Damage a file of an interrupted run, then resume it."""
    made = reference(bench.prepared("whole"), "--cl_algorithm", "replay")
    broken = interrupted(bench.prepared("interrupted"), made)
    for name, kind, seed in _damages(bench, broken, "run"):
        yield Case(f"{kind} {seed} {name}", _resumed(broken, made, name, (kind, seed)))


def damage_finished_run(bench: Bench) -> Iterator[Case]:
    """Damage a file of a finished run, then evaluate its last model."""
    made = reference(bench.prepared("finished"), "--cl_algorithm", "replay")
    ended = run_command(EVALUATE, made.folder)
    assert ended.status == 0, ended.errors
    for name, kind, seed in _damages(bench, made.run, "finished", under="checkpoint_task_1"):
        yield Case(f"{kind} {seed} {name}", _evaluated(made, name, (kind, seed)))


def interrupted(folder: Path, made: Reference) -> Path:
    """A run like ``made`` that was killed in its second stage, after a checkpoint."""
    at = made.operations.index("os.rename .tmp-step_00000003") + 8
    killed = run_command(made.words, folder, prepare=Trap(folder / RUN, at).set)
    assert killed.status < 0, killed.errors
    return folder / RUN


def contents(run: Path) -> dict[str, str]:
    """The hashes of all files that a refused command must not change."""
    return {
        path.relative_to(run).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in run.rglob("*")
        if path.is_file() and path.name not in UNTOUCHED
    }


def _damages(bench: Bench, run: Path, part: str, under: str = "") -> Iterator[tuple[str, str, int]]:
    rng = bench.rng("damage", part)
    files = (path for path in (run / under).rglob("*") if path.is_file())
    names = sorted(path.relative_to(run).as_posix() for path in files)
    cases = [(name, kind) for name in names for kind in DAMAGES]
    for name, kind in rng.sample(cases, bench.amount(len(cases))):
        yield name, kind, rng.randrange(2**32)


def _resumed(
    broken: Path, made: Reference, name: str, damage: tuple[str, int]
) -> Callable[[Path], Verdict]:
    def attempt(folder: Path) -> Verdict:
        run = copied(broken, folder)
        DAMAGES[damage[0]](run / name, Random(damage[1]))
        before = contents(run)
        ended = run_command(RESUME, folder)
        if ended.status == 0:
            found = difference(run, made.run, besides=_sealed(run / name))
            return wrong(found) if found else survived()
        if not ended.is_refusal:
            return lost(crash(ended))
        changed = sorted({name for name, _ in contents(run).items() ^ before.items()})
        return lost(f"refused, and changed {', '.join(changed)}") if changed else survived()

    return attempt


def _sealed(path: Path) -> str:
    """The checkpoint of a damaged file, which was not used and is refused when it is."""
    folder = next((parent for parent in path.parents if "checkpoint" in parent.parent.name), None)
    folder = folder or next((up for up in path.parents if up.name.startswith("checkpoint_")), None)
    is_named = folder is not None and (not folder.exists() or verify(folder) is not None)
    return folder.name if folder is not None and is_named else ""


def _evaluated(made: Reference, name: str, damage: tuple[str, int]) -> Callable[[Path], Verdict]:
    def attempt(folder: Path) -> Verdict:
        run = copied(made.run, folder)
        DAMAGES[damage[0]](run / name, Random(damage[1]))
        ended = run_command(EVALUATE, folder)
        if ended.status != 0:
            return survived() if ended.is_refusal else lost(crash(ended))
        results = [(place / EVALUATE[-1]).read_bytes() for place in (folder, made.folder)]
        return survived() if results[0] == results[1] else wrong("another evaluation")

    return attempt
