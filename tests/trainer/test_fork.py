import json
import os
import sys
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import CheckpointError, ConfigError
from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.report import write_report
from grpo_cl.runs.layout import RunDir
from grpo_cl.runs.resume import resume_point
from grpo_cl.storage.files import LEFTOVER, read_json
from grpo_cl.trainer import GRPOTrainer
from grpo_cl.trainer.fork import forked_state, write_fork
from grpo_cl.trainer.run_log import Position
from toy_resume import SAVING, fingerprint
from toy_runs import toy_config, toy_run

SHORT: dict[str, Any] = {"num_steps_per_task": 2, "evaluation": {"trials": 1}, "logging": SAVING}


def fork(source: Path, target: Path, **given: Any) -> GRPOTrainer:
    config = GRPOConfig.model_validate({"resume_from": source, "fork": target, **given})
    trainer = GRPOTrainer(config)
    trainer.train()
    return trainer


def contents(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_fork_without_other_settings_repeats_the_run(tmp_path: Path) -> None:
    whole = toy_run(tmp_path / "run", **SHORT)
    before = contents(tmp_path / "run")
    same = fork(tmp_path / "run" / "checkpoint_task_0", tmp_path / "fork")
    assert fingerprint(same) == fingerprint(whole)
    run, forked = RunDir(tmp_path / "run"), RunDir(tmp_path / "fork")
    assert run.metrics_journal.read_bytes() == forked.metrics_journal.read_bytes()
    assert run.r_matrix.read_bytes() == forked.r_matrix.read_bytes()
    assert contents(tmp_path / "run") == before
    assert {path.name for path in tmp_path.iterdir()} == {"run", "fork"}


def test_a_fork_has_its_own_settings_and_records_where_it_came_from(tmp_path: Path) -> None:
    whole = toy_run(tmp_path / "run", **SHORT)
    other = fork(tmp_path / "run" / "checkpoint_task_0", tmp_path / "fork", learning_rate=0.5)
    assert fingerprint(other) != fingerprint(whole)
    stored = json.loads(RunDir(tmp_path / "fork").config.read_text())
    assert (stored["learning_rate"], stored["num_steps_per_task"]) == (0.5, 2)
    assert stored["resume_from"] is stored["fork"] is None
    origin = tmp_path / "run" / "checkpoints" / "step_00000002"
    change = {"name": "learning_rate", "before": 0.1, "after": 0.5}
    made = json.loads(RunDir(tmp_path / "fork").config_changes.read_text())
    assert made == [{"step": 2, "forked_from": str(origin), "changes": [change]}]
    assert str(origin) in write_report(tmp_path / "fork").read_text()
    resumed = GRPOTrainer(GRPOConfig(resume_from=tmp_path / "fork"))
    resumed.train()
    assert resumed.config.learning_rate == 0.5
    assert fingerprint(resumed) == fingerprint(other)


@pytest.mark.slow
def test_an_interrupted_fork_is_resumed_like_any_run(tmp_path: Path) -> None:
    toy_run(tmp_path / "run", **SHORT)
    source = tmp_path / "run" / "checkpoint_task_0"
    whole = fork(source, tmp_path / "whole", cl_algorithm="ewc", cl_options={"strength": 0.5})
    config = GRPOConfig(
        resume_from=source,
        fork=tmp_path / "cut",
        cl_algorithm="ewc",
        cl_options={"strength": 0.5},
    )
    cut = GRPOTrainer(config)
    with cut.run_log:
        cut._begin()
    resumed = GRPOTrainer(GRPOConfig(resume_from=tmp_path / "cut"))
    resumed.train()
    assert fingerprint(resumed) == fingerprint(whole)


@pytest.mark.slow
def test_a_fork_with_another_algorithm_equals_a_run_of_it_if_the_stage_was_the_same(
    tmp_path: Path,
) -> None:
    options = {"cl_algorithm": "ewc", "cl_options": {"strength": 0.5}}
    alone = toy_run(tmp_path / "alone", **SHORT, **options)
    toy_run(tmp_path / "run", **SHORT)
    forked = fork(tmp_path / "run" / "checkpoint_task_0", tmp_path / "fork", **options)
    assert fingerprint(forked) == fingerprint(alone)


def test_the_algorithm_changes_only_between_stages(tmp_path: Path) -> None:
    toy_run(tmp_path / "run", **{**SHORT, "logging": {**SAVING, "keep_checkpoints": 9}})
    within = tmp_path / "run" / "checkpoints" / "step_00000003"
    with pytest.raises(ConfigError, match=r"within stage 1; fork from .*checkpoint_task_0"):
        fork(within, tmp_path / "fork", cl_algorithm="ewc")
    assert not (tmp_path / "fork").exists()


def test_a_fork_may_go_on_with_other_domains_but_has_the_same_past(tmp_path: Path) -> None:
    toy_run(tmp_path / "run", **SHORT)
    stage = tmp_path / "run" / "checkpoint_task_0"
    fork(stage, tmp_path / "fork", task_order=("toy_left", "toy_up"))
    matrix = RMatrix.load(RunDir(tmp_path / "fork").r_matrix)
    assert matrix.domains == ("toy_left", "toy_up")
    assert [set(row.cells) for row in matrix.rows] == [
        {"toy_left"},
        {"toy_left"},
        {"toy_left", "toy_up"},
    ]
    with pytest.raises(ConfigError, match="was trained on toy_left; begin the order with"):
        fork(stage, tmp_path / "other", task_order=("toy_up", "toy_left"))


def test_a_fork_into_an_existing_run_or_of_a_damaged_stage_is_refused(tmp_path: Path) -> None:
    toy_run(tmp_path / "run", **SHORT)
    stage = tmp_path / "run" / "checkpoint_task_0"
    with pytest.raises(ConfigError, match="already holds a run"):
        fork(stage, tmp_path / "run")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is a file, and a run needs a directory"):
        fork(stage, tmp_path / "file")
    with (stage / "model" / "model.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(CheckpointError, match=r"model of stage 0, .* is damaged"):
        fork(stage, tmp_path / "fork")
    assert not (tmp_path / "fork").exists()


def test_a_fork_that_would_train_nothing_is_refused(tmp_path: Path) -> None:
    toy_run(tmp_path / "run", **SHORT)
    with pytest.raises(ConfigError, match=r"no stage is left .*end of stage 1, .*earlier stage"):
        fork(tmp_path / "run", tmp_path / "fork", learning_rate=0.5)
    with pytest.raises(ConfigError, match=r"no stage is left .* task_order is toy_left;"):
        fork(tmp_path / "run" / "checkpoint_task_0", tmp_path / "fork", task_order=("toy_left",))
    GRPOTrainer(toy_config(tmp_path / "part", **SHORT)).train(until=Position(stage=0, step=2))
    with pytest.raises(ConfigError, match=r"num_steps_per_task is 1, .* has 2 steps of stage 0;"):
        fork(tmp_path / "part", tmp_path / "fork", num_steps_per_task=1)
    assert not (tmp_path / "fork").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": 0.0}, "temperature=0 makes all episodes of a group equal"),
        ({"train_split": 0.5}, "train_split=0.5 has no effect"),
        ({"tasks": {"own": False}}, "'toy_left' has no training tasks"),
    ],
)
def test_a_fork_is_checked_like_a_new_run(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    toy_run(tmp_path / "run", **SHORT)
    with pytest.raises(ConfigError, match=message):
        fork(tmp_path / "run" / "checkpoint_task_0", tmp_path / "fork", **given)
    assert not (tmp_path / "fork").exists()


def test_a_run_without_a_checkpoint_cannot_be_forked(tmp_path: Path) -> None:
    RunDir(tmp_path / "run").write_config(toy_config(tmp_path / "run", **SHORT))
    with pytest.raises(ConfigError, match="no checkpoint yet to fork from"):
        fork(tmp_path / "run", tmp_path / "fork")


def test_a_fork_within_a_stage_goes_on_with_the_stage(tmp_path: Path) -> None:
    GRPOTrainer(toy_config(tmp_path / "run", **SHORT)).train(until=Position(stage=0, step=2))
    fork(tmp_path / "run", tmp_path / "fork", num_steps_per_task=3, seed=5)
    metrics = RunDir(tmp_path / "fork").read_metrics()
    assert [len(metrics[f"task_{stage}/train"]) for stage in (0, 1)] == [3, 3]


FILE_EVENTS = {"open", "os.mkdir", "os.rename", "os.link", "os.remove", "shutil.copyfile"}


def _fork_and_die(source: Path, config: GRPOConfig, events: int) -> None:
    """Write a fork, killed before the file operation number ``events``."""

    def kill(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal events
        del arguments
        events -= event in FILE_EVENTS
        if events < 0:
            os._exit(9)

    point = resume_point(source)
    assert point.checkpoint is not None
    state = forked_state(read_json(point.checkpoint.state), point.checkpoint, config)
    sys.addaudithook(kill)
    write_fork(point.run, point.checkpoint, state, config)


@pytest.mark.slow
def test_a_fork_killed_at_any_file_operation_is_complete_or_not_there(tmp_path: Path) -> None:
    toy_run(tmp_path / "run", **SHORT)
    stage = tmp_path / "run" / "checkpoint_task_0"
    config = toy_config(tmp_path / "fork", **SHORT, seed=5)
    kills = 0
    for events in range(0, 1000, 9):
        process = get_context("fork").Process(target=_fork_and_die, args=(stage, config, events))
        process.start()
        process.join()
        if (tmp_path / "fork").exists():
            break
        assert process.exitcode == 9
        kills += 1
        others = [path.name for path in tmp_path.iterdir() if path.name != "run"]
        assert len(others) <= 1  # what an earlier killed process wrote was removed
        assert all(LEFTOVER.fullmatch(name) for name in others)
    point = resume_point(tmp_path / "fork")
    assert point.checkpoint is not None
    assert RunDir(tmp_path / "fork").config.exists()
    assert kills > 3


def test_refused_fork_leaves_nothing_and_touches_no_other_folder(tmp_path: Path) -> None:
    toy_run(tmp_path / "run", **SHORT)
    for name in (".branch-fork", ".tmp-fork-of-mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.tex").write_text("mine")
    before = sorted(tmp_path.iterdir())
    stage = tmp_path / "run" / "checkpoint_task_0"
    (stage / "model" / "config.json").unlink()
    config = toy_config(tmp_path / "fork", **SHORT, seed=5)
    point = resume_point(stage)
    assert point.checkpoint is not None
    state = forked_state(read_json(point.checkpoint.state), point.checkpoint, config)
    with pytest.raises(CheckpointError, match="is damaged"):
        write_fork(point.run, point.checkpoint, state, config)
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / ".branch-fork" / "thesis.tex").read_text() == "mine"
