"""From where a run goes on, whatever a person points at."""

from pathlib import Path
from typing import NamedTuple

from grpo_cl.errors import CheckpointError, ConfigError
from grpo_cl.rundir.layout import CheckpointFiles, RunDir
from grpo_cl.rundir.store import MANIFEST, Damage, require_checkpoint


class ResumePoint(NamedTuple):
    """A run and the state to load."""

    run: RunDir
    checkpoint: CheckpointFiles | None
    """None if the run was stopped before its first checkpoint and has to begin again."""
    damaged: list[Damage]
    """Newer checkpoints that were passed over; they are for the reader to hear of."""


def resume_point(path: Path) -> ResumePoint:
    """The checkpoint ``path``, or the last good one of the run directory ``path``."""
    path = path.resolve()
    if not path.is_dir():
        raise ConfigError(
            f"resume_from {str(path)!r} is no directory; give a run's log_dir or a folder in its "
            "checkpoints/"
        )
    inside = path.parent == RunDir(path.parent.parent).checkpoints_dir
    if inside or (path / MANIFEST).exists():
        return ResumePoint(RunDir(path.parent.parent), _resumable(require_checkpoint(path)), [])
    run = RunDir(path.parent) if path == RunDir(path.parent).checkpoints_dir else RunDir(path)
    return _last_good(run)


def _resumable(path: Path) -> CheckpointFiles:
    files = CheckpointFiles(path)
    if not files.state.exists():
        raise ConfigError(
            f"{path} holds what a stage learned, not a state to resume from; resume from its run "
            f"{path.parent}, or start a run from it with --model_name_or_path {files.model_dir}"
        )
    return files


def _last_good(run: RunDir) -> ResumePoint:
    if not run.config.exists() and not run.checkpoints_dir.is_dir():
        raise ConfigError(
            f"resume_from {str(run.root)!r} holds no run: neither {run.config.name} nor "
            f"{run.checkpoints_dir.name}/ is there; give a run's log_dir"
        )
    path, damaged = run.latest()
    if path is None and damaged:
        problems = "; ".join(f"{bad.path.name}: {bad.problem}" for bad in damaged)
        raise CheckpointError(
            f"no checkpoint of {run.root} is undamaged ({problems}); start a new run in another "
            "log_dir"
        )
    return ResumePoint(run, _resumable(path) if path else None, damaged)
