"""What a run resumes or forks from: found and verified before anything is changed."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.runs.checkpoint_state import STATE, read_checkpoint_state
from grpo_cl.runs.damage import (
    JournalDamage,
    accept,
    damaged_journals,
    require_journals,
    with_accepted,
)
from grpo_cl.runs.layout import CheckpointFiles, CutOff, RunDir
from grpo_cl.runs.result_files import require_checksums
from grpo_cl.runs.resume import read_task_releases, resume_point
from grpo_cl.runs.settings import Change, changes_between, read_settings, require_own_settings
from grpo_cl.runs.state_files import restoring
from grpo_cl.storage.journal import read_journal
from grpo_cl.trainer.fork import forked_state

logger = logging.getLogger(__name__)


class Checkpoint(NamedTuple):
    """A checkpoint to resume from."""

    state: Mapping[str, Any]
    files: CheckpointFiles


class Resume(NamedTuple):
    """The run of ``resume_from``, and what is taken from it."""

    run: RunDir
    checkpoint: Checkpoint | None = None
    """None if the run was interrupted before its first checkpoint."""
    matrix: RMatrix | None = None
    damaged: Sequence[JournalDamage] = ()
    """Journals that the run goes on without (``accept_damage``)."""
    times: Sequence[dict[str, Any]] = ()
    """Wall times of the earlier processes; on the main rank."""


def find_resume(config: GRPOConfig, releases: Mapping[str, str], *, is_main: bool) -> Resume:
    """Find and verify what ``config.resume_from`` names; ``releases`` are those of the tasks.

    Nothing is changed, so that a run that cannot be resumed stays as it is.
    """
    assert config.resume_from is not None
    point = resume_point(config.resume_from)
    for damage in point.damaged:
        logger.warning("checkpoint %s is skipped: %s", damage.path, damage.problem)
    if config.fork is None:
        _require_same_tasks(point.run, releases)
        require_checksums(point.run.root)  # before work: every summary is written with one
    if point.checkpoint is None:
        if config.fork is not None:
            raise ConfigError(
                f"the run {point.run.root} has no checkpoint yet to fork from; start a new run "
                "instead"
            )
        return Resume(point.run)
    state = with_accepted(point.run, _state(point.run, point.checkpoint, config))
    # Rows that were written before domains were appended have no cells of these.
    with restoring(point.checkpoint.state, STATE):
        matrix = RMatrix.model_validate(state["r_matrix"])
    damaged = damaged_journals(point.run, state) if is_main else []
    if not config.accept_damage or config.fork is not None:
        require_journals(point.run, damaged)
    return Resume(
        point.run,
        Checkpoint(state, point.checkpoint),
        matrix.model_copy(update={"domains": config.task_order}),
        damaged,
        list(read_journal(point.run.times_journal)) if is_main else [],
    )


def without_damage(resume: Resume) -> Checkpoint | None:
    """The checkpoint with repaired journals, and a word about what is lost."""
    if resume.checkpoint is None or not resume.damaged:
        return resume.checkpoint
    state = accept(resume.run, resume.checkpoint.state, resume.damaged)
    for damage in resume.damaged:
        logger.warning("going on without damaged data: %s", damage.problem)
    return resume.checkpoint._replace(state=state)


def cut_off_after(checkpoint: Checkpoint, run: RunDir) -> CutOff | None:
    """Move aside what ``run`` did after ``checkpoint``, and say so."""
    state = checkpoint.state
    cut = run.cut_off(
        step=state["global_step"], stages=state["position"]["stage"], **state["offsets"]
    )
    if cut is not None:
        logger.warning(
            "resumed from step %d: %d later checkpoints, %d stage models, %d metrics lines and "
            "%d episodes were moved to %s",
            *(state["global_step"], cut.steps, cut.stages, cut.metrics, cut.episodes),
            cut.folder,
        )
    return cut


def _state(run: RunDir, files: CheckpointFiles, config: GRPOConfig) -> dict[str, Any]:
    """The state of a checkpoint, with the changes of settings up to it and at it."""
    state = read_checkpoint_state(files)
    if config.fork is not None:
        return forked_state(state, files, config)
    changes = changes_between(read_settings(files.config), config)
    require_own_settings(changes, run, files)
    if state["position"]["stage"] >= len(config.task_order):
        _require_effect(changes, run)
    made: list[dict[str, Any]] = list(state["changes"])
    if changes:
        listed = [change.model_dump() for change in changes]
        made.append({"step": state["global_step"], "changes": listed})
    return {**state, "changes": made}


def _require_effect(changes: Sequence[Change], run: RunDir) -> None:
    """Refuse more steps for a run that has no stage left to take them in."""
    for change in changes:
        if change.name == "num_steps_per_task":
            raise ConfigError(
                f"num_steps_per_task is {change.before} in the run {run.root} and "
                f"{change.after} was given, but all its stages are finished; append domains to "
                "task_order, or fork from the end of an earlier stage with --fork DIR"
            )


def _require_same_tasks(run: RunDir, releases: Mapping[str, str]) -> None:
    """Refuse other releases of the tasks than the run began with."""
    before = read_task_releases(run)
    for domain, release in releases.items():
        if before.get(domain, release) != release:
            raise ConfigError(
                f"the tasks of {domain} are {before[domain]!r} in the run {run.root} and "
                f"{release!r} here; give the tau2_data_dir of the run, install the version of "
                "grpo-cl that generated its tasks, or start a new run from that checkpoint "
                "with --fork DIR"
            )
