"""Find the checkpoint that ``resume_from`` names, and the model that a path in a run names."""

from pathlib import Path
from typing import NamedTuple

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import CheckpointError, ConfigError
from grpo_cl.runs.checkpoints import MANIFEST, Damage, require_checkpoint, require_sealed
from grpo_cl.runs.layout import CheckpointFiles, RunDir
from grpo_cl.runs.result_files import read_with_checksum
from grpo_cl.storage.lock import require_unlocked

IN_USE = "choose another log_dir"
"""What to do, besides waiting, if another process writes a run directory."""

_ENVIRONMENT_REMEDY = "restore it, or remove it to go on without comparing the tasks' releases"


class ResumePoint(NamedTuple):
    """A run and the checkpoint to load."""

    run: RunDir
    checkpoint: CheckpointFiles | None
    """None if the run stopped before its first checkpoint and starts again."""
    damaged: list[Damage]
    """Newer checkpoints that were skipped."""


class StageModel(NamedTuple):
    """The model of a finished stage."""

    model_dir: Path
    config: Path | None
    """The configuration of its run; None if it is missing."""


def resume_point(path: Path) -> ResumePoint:
    """The checkpoint or stage ``path``, or the last intact checkpoint of the run directory."""
    run = run_of(path)
    path = path.resolve()
    if (stage := run.stage_of(path)) is not None:
        return ResumePoint(run, _stage_end(run, stage), [])
    if path.parent == run.checkpoints_dir:
        return ResumePoint(run, CheckpointFiles(require_checkpoint(path)), [])
    return _last_intact(run)


def run_of(path: Path) -> RunDir:
    """The run that ``path`` belongs to: its directory, a checkpoint, or a stage of it."""
    path = path.resolve()
    inside = RunDir(path.parent.parent)
    if path.parent == inside.checkpoints_dir and path.is_dir():
        return inside
    beside = RunDir(path.parent)
    if path == beside.checkpoints_dir or beside.stage_of(path) is not None:
        return _require_run(beside)
    if path == CheckpointFiles(path.parent).model_dir and inside.stage_of(path.parent) is not None:
        raise ConfigError(
            f"resume_from {str(path)!r} is the model of a stage without its training state; "
            f"give the stage, {path.parent}"
        )
    if not path.is_dir():
        raise ConfigError(
            f"resume_from {str(path)!r} is not a directory; give a run's log_dir, one of its "
            "stages checkpoint_task_N, or a directory in its checkpoints/"
        )
    if (path / MANIFEST).exists():
        raise ConfigError(
            f"resume_from {str(path)!r} is a checkpoint outside of its run; give the run's log_dir"
        )
    return _require_run(RunDir(path))


def require_free(config: GRPOConfig) -> None:
    """Refuse, before anything is loaded, a run directory that is in use or not vacant."""
    if config.resume_from is not None and config.fork is None:
        require_unlocked(run_of(config.resume_from).root, remedy=IN_USE)
        return
    run = RunDir(config.fork or config.log_dir)
    require_unlocked(run.root, remedy=IN_USE)
    run.require_vacant()


def read_task_releases(run: RunDir) -> dict[str, str]:
    """The releases of the tasks that a run began with, by domain; empty if they are not known."""
    releases = read_with_checksum(run.environment, _ENVIRONMENT_REMEDY).get("task_releases", {})
    if not isinstance(releases, dict):
        raise CheckpointError(
            f"task_releases of {run.environment} must have a release for each domain; "
            f"{_ENVIRONMENT_REMEDY}"
        )
    return {str(domain): str(release) for domain, release in releases.items()}


def find_stage_model(path: Path) -> StageModel | None:
    """The model of a run, of one of its stages, or of a stage's model directory.

    A run directory names its last stage. None if ``path`` is none of these; a damaged stage is
    refused.
    """
    checkpoint = CheckpointFiles(path)
    if not checkpoint.model_dir.is_dir() and path.name == checkpoint.model_dir.name:
        checkpoint = CheckpointFiles(path.parent)
        if not checkpoint.config.is_file():
            return None
    elif not checkpoint.model_dir.is_dir():
        run = RunDir(path)
        if not run.metrics_journal.is_file():
            return None
        stage = run.last_stage()
        if stage is None:
            raise ConfigError(f"the run in {path} has no finished stage, so it has no model")
        checkpoint = run.stage_checkpoint(stage)
    require_sealed(checkpoint.model_dir)  # before its configuration is read
    config = checkpoint.config if checkpoint.config.is_file() else None
    return StageModel(checkpoint.model_dir, config)


def _stage_end(run: RunDir, stage: int) -> CheckpointFiles:
    found = run.stage_end(stage)
    if found is not None:
        return CheckpointFiles(require_checkpoint(found.root))
    model = run.stage_checkpoint(stage).model_dir
    if not model.is_dir():
        last = run.last_stage()
        remedy = "it has finished none" if last is None else f"its last one is {last}"
        raise ConfigError(f"the run {run.root} has not finished stage {stage}; {remedy}")
    raise ConfigError(
        f"{model.parent} holds a model only: the checkpoint at the end of stage {stage} was not "
        f"kept (logging.keep_stage_ends); resume from {run.root}, or start a new run from the "
        f"model with --model_name_or_path {model}"
    )


def _require_run(run: RunDir) -> RunDir:
    if not run.config.exists() and not run.checkpoints_dir.is_dir():
        raise ConfigError(
            f"resume_from {str(run.root)!r} holds no run: it has neither {run.config.name} nor "
            f"{run.checkpoints_dir.name}/; give a run's log_dir"
        )
    return run


def _last_intact(run: RunDir) -> ResumePoint:
    path, damaged = run.latest()
    if path is None and damaged:
        problems = "; ".join(f"{bad.path.name}: {bad.problem}" for bad in damaged)
        raise CheckpointError(
            f"no checkpoint of {run.root} is intact ({problems}); start a new run in another "
            "log_dir"
        )
    return ResumePoint(run, CheckpointFiles(path) if path else None, damaged)
