"""A run that goes on from the first stage of another, as if it had trained that stage itself."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from grpo_cl.algorithms import SequentialCL, TrainerView
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import CheckpointError
from grpo_cl.metrics.rmatrix import BASE, RMatrix
from grpo_cl.rundir import (
    SERIES,
    CheckpointFiles,
    RunDir,
    link_file,
    read_json,
    resume_point,
    write_json,
)
from grpo_cl.trainer import GRPOTrainer

UNFINISHED = ".branch-"
"""Begins the name of a branch that is being made."""


class _Learned(Exception):  # noqa: N818
    """The first domain is learned, and nothing has been done about it yet."""


class _Trunk(SequentialCL):
    """Ends a run where algorithms begin to differ; the last step's checkpoint is behind it."""

    @override
    def post_task_hook(self, trainer: TrainerView, domain: str) -> None:
        raise _Learned


def train_trunk(config: GRPOConfig) -> None:
    """Measure the untrained policy and train the first stage, up to where algorithms differ."""
    trainer = GRPOTrainer(config)
    trainer.cl_algorithm = _Trunk()
    try:
        trainer.train()
    except _Learned:
        return


def branch(trunk: Path, config: GRPOConfig) -> None:
    """Make the run directory of ``config`` from a trunk's; it is there whole or not at all."""
    files = _last_step(trunk, config)
    state = read_json(files.state)
    unfinished = RunDir(config.log_dir.with_name(f"{UNFINISHED}{config.log_dir.name}"))
    shutil.rmtree(unfinished.root, ignore_errors=True)
    unfinished.root.mkdir(parents=True)
    unfinished.write_config(config)
    source = RunDir(trunk)
    shutil.copy(source.environment, unfinished.environment)
    shutil.copy(source.times_journal, unfinished.times_journal)
    episodes = source.trajectories_journal.read_bytes()[: state["offsets"]["episodes"]]
    unfinished.trajectories_journal.write_bytes(episodes)
    numbers = source.metrics_journal.read_bytes()[: state["offsets"]["metrics"]]
    unfinished.metrics_journal.write_bytes(_reordered(numbers, config.task_order))
    _save(unfinished, files, _branched(state, config), config)
    unfinished.root.rename(config.log_dir)


def _last_step(trunk: Path, config: GRPOConfig) -> CheckpointFiles:
    point = resume_point(trunk)
    steps = config.num_steps_per_task
    if point.checkpoint is not None and not point.damaged:
        state = read_json(point.checkpoint.state)
        if state["position"] == {"stage": 0, "step": steps}:
            return point.checkpoint
    problem = point.damaged[0].problem if point.damaged else f"it has none of step {steps}"
    raise CheckpointError(
        f"the shared first stage {trunk} cannot be gone on from: {problem}; delete that folder "
        "and its file in outcomes/, and it is trained again"
    )


def _branched(state: dict[str, Any], config: GRPOConfig) -> dict[str, Any]:
    """The state with the order of the branch, and no algorithm yet."""
    matrix = RMatrix.model_validate(state["r_matrix"])
    branched = RMatrix(domains=config.task_order)
    for domain in config.task_order:
        cell = matrix.cell(BASE, domain)
        assert cell is not None, f"{domain} was not measured before the first stage"
        branched = branched.with_cell(BASE, domain, cell)
    return {**state, "r_matrix": branched.to_json(), "algorithm": None}


def _reordered(journal: bytes, order: Sequence[str]) -> bytes:
    """The journal as a run of this order writes it: it measures the domains in its own order."""
    lines = journal.splitlines(keepends=True)
    places: list[int] = []
    found: dict[str, bytes] = {}
    for place, line in enumerate(lines):
        record = json.loads(line)
        if str(record[SERIES]).endswith("/eval") and record.get("after") == BASE:
            places.append(place)
            found[record["domain"]] = line
    for place, domain in zip(places, order, strict=True):
        lines[place] = found[domain]
    return b"".join(lines)


def _save(run: RunDir, files: CheckpointFiles, state: dict[str, Any], config: GRPOConfig) -> None:
    def fill(target: CheckpointFiles) -> None:
        shutil.copytree(files.policy_dir, target.policy_dir, copy_function=link_file)
        target.algorithm_dir.mkdir()
        link_file(files.trajectories, target.trajectories)
        target.write_config(config)
        write_json(target.state, state)

    run.save_step(state["global_step"], fill, keep=config.logging.keep_checkpoints)
