"""A run of milliseconds, and the comparison of its results with those of an unbroken one."""

import filecmp
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from paths import CONFIGS
from torture.cases import Verdict, crash, lost, survived, wrong
from torture.file_operations import Trap
from torture.processes import Ended, run_command

RUN = "run"
"""The run directory, relative: so its files do not depend on the folder of the case."""
TRAIN = (
    *("train", "--config", str(CONFIGS / "toy.yaml"), "--log_dir", RUN),
    *("--task_order", "[toy_left, toy_right]", "--num_steps_per_task", "2"),
    *("--batch_size_per_gpu", "2", "--num_samples_per_prompt", "2"),
    *("--evaluation.trials", "1", "--evaluation.max_tasks", "2"),
    *("--logging.save_interval", "1", "--logging.trackers", "[]"),
)
RESUME = ("train", "--resume_from", RUN)
ALGORITHMS = ("sequential", "replay", "ewc", "der", "si", "agem")

COMPARED = ("*.jsonl", "metrics.json", "r_matrix.json", "**/*.safetensors", "**/optimizer.json")
CLOCKS = frozenset({"times.jsonl"})


class Reference(NamedTuple):
    """An unbroken run."""

    words: tuple[str, ...]
    """The command that made it."""
    folder: Path
    operations: list[str]
    """Its file operations."""

    @property
    def run(self) -> Path:
        return self.folder / RUN


def reference(folder: Path, *settings: str, words: Sequence[str] = TRAIN) -> Reference:
    """Make an unbroken run and count its file operations."""
    command = (*words, *settings)
    listing = folder / "operations"
    trap = Trap(folder / RUN)

    def watch() -> None:
        trap.set()

    ended = run_command(command, folder, prepare=watch, finish=lambda: _list(listing, trap))
    assert ended.status == 0, ended.errors
    return Reference(command, folder, listing.read_text().splitlines())


def _list(listing: Path, trap: Trap) -> None:
    listing.write_text("\n".join(trap.operations))


def difference(run: Path, unbroken: Path, *, besides: str = "") -> str | None:
    """The first result of a run that differs from the unbroken one's; None if all are equal.

    Files of the checkpoint ``besides`` are not compared.
    """
    for name in sorted(results(run) | results(unbroken)):
        if besides and besides in Path(name).parts:
            continue
        if not (run / name).is_file():
            return f"{name} is missing"
        if not (unbroken / name).is_file():
            return f"{name} was not in the unbroken run"
        if not filecmp.cmp(run / name, unbroken / name, shallow=False):
            return f"{name} differs"
    return None


def results(run: Path) -> set[str]:
    """The files of a run that its settings determine, by relative path."""
    found = (path.relative_to(run) for pattern in COMPARED for path in run.glob(pattern))
    return {
        path.as_posix()
        for path in found
        # A folder with a dot is the rest of a removed checkpoint, which every command ignores.
        if path.name not in CLOCKS
        and path.parts[0] != "cut_off"
        and not any(part.startswith(".") for part in path.parts[:-1])
    }


def resumed(folder: Path, made: Reference) -> Verdict:
    """The verdict on a broken run that is resumed to its end."""
    # A process killed before its run had settings left nothing to resume: it starts again.
    has_begun = (folder / RUN / "config.json").exists()
    ended = run_command(RESUME if has_begun else made.words, folder)
    return finished(ended, folder, made)


def finished(ended: Ended, folder: Path, made: Reference) -> Verdict:
    """The verdict on a run that should have ended like ``made``."""
    if ended.status != 0:
        return lost(f"the run does not go on: {crash(ended)}")
    found = difference(folder / RUN, made.run)
    return wrong(found) if found else survived()


def copied(source: Path, folder: Path) -> Path:
    """A copy of a run directory in the folder of a case."""
    target = folder / RUN
    shutil.copytree(source, target)
    return target
