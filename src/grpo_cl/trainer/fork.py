"""Forks: a new run that starts from a checkpoint of another one, with other settings."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_cl.algorithms import find_algorithm
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import CheckpointError, ConfigError
from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.runs.checkpoint_state import with_seals, write_checkpoint_state
from grpo_cl.runs.checkpoints import verify
from grpo_cl.runs.layout import SERIES, CheckpointFiles, RunDir
from grpo_cl.runs.result_files import begin_checksums, read_with_checksum, with_checksum
from grpo_cl.runs.settings import NOT_RECORDED, changes_between, read_settings
from grpo_cl.storage.checksums import Seal
from grpo_cl.storage.files import LEFTOVER, TEMPORARY, link_file, temporary_path, write_json
from grpo_cl.storage.journal import Journal, copy_lines
from grpo_cl.storage.lock import LOCK_FILE, locked, require_unlocked


def forked_state(
    state: Mapping[str, Any], files: CheckpointFiles, config: GRPOConfig
) -> dict[str, Any]:
    """The state of the checkpoint ``files`` for a run with the settings of ``config``.

    An algorithm that the checkpoint was not trained with starts without a state.
    """
    own = read_settings(files.config)
    _require_same_past(state, own, config)
    _require_steps_left(state, files, config)
    has_algorithm = own.cl_algorithm == config.cl_algorithm
    if not has_algorithm:
        _require_boundary(state, own, config)
    changes = [change.model_dump() for change in changes_between(own, config)]
    step = {"step": state["global_step"], "forked_from": str(files.root), "changes": changes}
    return {
        **state,
        "r_matrix": _reorder_matrix(state["r_matrix"], config.task_order).to_json(),
        "algorithm": state["algorithm"] if has_algorithm else None,
        "tasks_per_step": None,  # the fork's own are known once it has taken a step
        "changes": [*state["changes"], step],
    }


def write_fork(
    source: RunDir, files: CheckpointFiles, state: Mapping[str, Any], config: GRPOConfig
) -> None:
    """Write the run directory of ``config`` from a checkpoint of ``source``, atomically.

    ``state`` is the result of ``forked_state``. Weights and models are linked.
    """
    target = RunDir(config.log_dir)
    _remove_leftovers(target.root)
    unfinished = RunDir(temporary_path(target.root))
    unfinished.root.mkdir(parents=True)
    try:
        _write_fork(source, files, state, config, unfinished)
    finally:
        shutil.rmtree(unfinished.root, ignore_errors=True)  # it is there if the fork was refused


def _write_fork(
    source: RunDir,
    files: CheckpointFiles,
    state: Mapping[str, Any],
    config: GRPOConfig,
    unfinished: RunDir,
) -> None:
    """Write the run directory to ``unfinished``, and rename it."""
    target = RunDir(config.log_dir)
    with locked(unfinished.root, remedy="choose another directory"):
        begin_checksums(unfinished.root)
        unfinished.write_config(config.model_copy(update=NOT_RECORDED))
        write_json(unfinished.config_changes, state["changes"])
        state = _copy_journals(source, unfinished, state, config.task_order)
        _link_stages(source, unfinished, state["position"]["stage"])
        _link_evaluations(source, unfinished, state["position"]["stage"])
        _save_checkpoint(unfinished, files, state, config)
        try:
            unfinished.root.rename(target.root)
        except OSError as error:
            raise ConfigError(
                f"{target.root} was created by another process ({error.strerror}); choose another "
                "directory"
            ) from error
        (target.root / LOCK_FILE).unlink(missing_ok=True)


def _require_same_past(state: Mapping[str, Any], own: GRPOConfig, config: GRPOConfig) -> None:
    """Refuse another order of the domains that were trained on before the checkpoint."""
    position = state["position"]
    begun = own.task_order[: position["stage"] + (position["step"] > 0)]
    if config.task_order[: len(begun)] != begun:
        raise ConfigError(
            f"task_order is {' '.join(config.task_order)}, but the checkpoint was trained on "
            f"{' '.join(begun)}; begin the order with these domains, or fork from an earlier stage"
        )


def _require_steps_left(
    state: Mapping[str, Any], files: CheckpointFiles, config: GRPOConfig
) -> None:
    """Refuse a fork whose settings nothing would be trained with."""
    stage, step = state["position"]["stage"], state["position"]["step"]
    if stage >= len(config.task_order):
        raise ConfigError(
            f"no stage is left to train after the checkpoint {files.root}: it is the end of stage "
            f"{stage - 1}, and task_order is {' '.join(config.task_order)}; append domains to "
            "task_order, or fork from the end of an earlier stage, as RUN/checkpoint_task_0"
        )
    if step > config.num_steps_per_task:
        raise ConfigError(
            f"num_steps_per_task is {config.num_steps_per_task}, but the checkpoint {files.root} "
            f"has {step} steps of stage {stage}; give {step} or more, or fork from an earlier "
            "checkpoint"
        )


def _require_boundary(state: Mapping[str, Any], own: GRPOConfig, config: GRPOConfig) -> None:
    """Refuse to change the algorithm within a stage, whose beginning it would not have seen."""
    stage, step = state["position"]["stage"], state["position"]["step"]
    is_shared = stage == 0 and find_algorithm(config.cl_algorithm).shares_first_stage
    if step > 0 and not is_shared:
        remedy = f"RUN/checkpoint_task_{stage - 1}" if stage else "RUN/checkpoint_task_0"
        raise ConfigError(
            f"cl_algorithm is {own.cl_algorithm} in the run and {config.cl_algorithm} was given, "
            f"but the checkpoint is within stage {stage}; fork from the end of a stage, as {remedy}"
        )


def _reorder_matrix(matrix: Mapping[str, Any], order: tuple[str, ...]) -> RMatrix:
    """The matrix with the domains of ``order``; cells of other domains are left out."""
    reordered = RMatrix(domains=order)
    for row in RMatrix.model_validate(matrix).rows:
        for domain in order:
            if domain in row.cells:
                reordered = reordered.with_cell(row.after, domain, row.cells[domain])
    return reordered


def _remove_leftovers(target: Path) -> None:
    """Remove what killed processes wrote for ``target``: names of ``temporary_path``, unlocked."""
    if not target.parent.is_dir():
        return
    own = temporary_path(target).name.rpartition("-")[0]
    for path in target.parent.glob(f"{TEMPORARY}*"):
        if LEFTOVER.fullmatch(path.name) and path.name.rpartition("-")[0] == own:
            try:
                require_unlocked(path, remedy="choose another directory")
            except ConfigError:
                continue  # another process writes it
            shutil.rmtree(path)


def _copy_journals(
    source: RunDir, target: RunDir, state: Mapping[str, Any], order: Sequence[str]
) -> dict[str, Any]:
    """Copy the journals up to the checkpoint, and return its state with the copies' checksums."""
    environment = read_with_checksum(source.environment, "restore it, or remove it to fork without")
    write_json(target.environment, with_checksum(environment))
    if source.damage.exists():
        shutil.copy(source.damage, target.damage)
    copy_lines(source.times_journal, target.times_journal)
    for name, journal in source.journals.items():
        copy_lines(journal, target.journals[name], end=state["offsets"][name])
    reordered = _reorder_evaluations(target.metrics_journal.read_bytes(), order)
    target.metrics_journal.write_bytes(reordered)
    seals: dict[str, Seal] = {}
    for name, path in target.journals.items():
        with Journal(path, has_checksums=True) as journal:
            seals[name] = journal.seal()
    return with_seals(state, seals)


def _reorder_evaluations(journal: bytes, order: Sequence[str]) -> bytes:
    """The journal with the evaluations of each row of the R-matrix in this task order."""
    lines = journal.splitlines(keepends=True)
    rows: dict[str, dict[int, str]] = {}
    for index, line in enumerate(lines):
        record = json.loads(line)
        if str(record[SERIES]).endswith("/eval") and "after" in record:
            rows.setdefault(record["after"], {})[index] = record["domain"]
    reordered = list(lines)
    for row in rows.values():
        ranked = sorted(row, key=lambda index: _rank(row[index], order))
        for place, index in zip(row, ranked, strict=True):
            reordered[place] = lines[index]
    return b"".join(reordered)


def _rank(domain: str, order: Sequence[str]) -> int:
    return order.index(domain) if domain in order else len(order)


def _link_stages(source: RunDir, target: RunDir, count: int) -> None:
    """Link the models of the first ``count`` stages; a damaged one is refused."""
    for stage in range(count):
        saved = source.stage_checkpoint(stage).root
        if not saved.is_dir():
            continue  # it was deleted to free space
        if problem := verify(saved):
            raise CheckpointError(
                f"the model of stage {stage}, {saved}, is damaged: {problem}; restore it, or move "
                "it away to fork without it"
            )
        linked = target.stage_checkpoint(stage).root
        shutil.copytree(saved, linked, copy_function=link_file)


def _link_evaluations(source: RunDir, target: RunDir, stage: int) -> None:
    """Link the evaluation episodes up to the end of ``stage`` stages."""
    later = set(source.evaluations_after(stage))
    for path in source.evaluations_after(-1):
        if path not in later:
            target.evaluations_dir.mkdir(exist_ok=True)
            link_file(path, target.evaluations_dir / path.name)


def _save_checkpoint(
    run: RunDir, files: CheckpointFiles, state: Mapping[str, Any], config: GRPOConfig
) -> None:
    def fill(target: CheckpointFiles) -> None:
        shutil.copytree(files.policy_dir, target.policy_dir, copy_function=link_file)
        if state["algorithm"] is None:
            target.algorithm_dir.mkdir()
        else:
            shutil.copytree(files.algorithm_dir, target.algorithm_dir, copy_function=link_file)
            if files.rollouts.exists():
                link_file(files.rollouts, target.rollouts)
        link_file(files.trajectories, target.trajectories)
        target.write_config(config.model_copy(update=NOT_RECORDED))
        write_checkpoint_state(target, state)

    run.save_step(state["global_step"], fill, keep=config.logging.keep_checkpoints)
