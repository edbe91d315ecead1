import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_cl.cli import main
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import CheckpointError, ConfigError
from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.report import write_report
from grpo_cl.runs.checkpoints import MANIFEST, _seal
from grpo_cl.runs.layout import RunDir
from grpo_cl.runs.result_files import with_checksum
from grpo_cl.storage.lock import locked
from grpo_cl.trainer import GRPOTrainer
from grpo_cl.trainer.run_log import Position
from toy_resume import SAVING, fingerprint
from toy_runs import toy_config, toy_run

SHORT: dict[str, Any] = {
    "num_steps_per_task": 2,
    "evaluation": {"trials": 1},
    "logging": {**SAVING, "keep_checkpoints": 1},
}
"""Two stages of two steps."""


def resume(path: Path, **given: Any) -> GRPOTrainer:
    trainer = GRPOTrainer(GRPOConfig.model_validate({"resume_from": path, **given}))
    trainer.train()
    return trainer


def contents(root: Path) -> dict[str, bytes]:
    """Every file of a directory, but the lock."""
    files = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items()}


def test_a_run_is_resumed_by_its_directory_alone(tmp_path: Path) -> None:
    whole = toy_run(tmp_path / "whole", **SHORT)
    GRPOTrainer(toy_config(tmp_path / "run", **SHORT)).train(until=Position(stage=0, step=2))
    resumed = resume(tmp_path / "run")
    assert fingerprint(resumed) == fingerprint(whole)
    assert resumed.config.learning_rate == whole.config.learning_rate
    journals = [RunDir(tmp_path / name).metrics_journal for name in ("whole", "run")]
    assert journals[0].read_bytes() == journals[1].read_bytes()
    assert not RunDir(tmp_path / "run").config_changes.exists()


def test_a_refused_setting_changes_no_file(tmp_path: Path) -> None:
    toy_run(tmp_path, **SHORT)
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match=r"learning_rate is 0.1 in the run"):
        resume(tmp_path, learning_rate=5.0)
    assert contents(tmp_path) == before


def test_damaged_times_are_named_before_later_results_are_moved_aside(tmp_path: Path) -> None:
    toy_run(tmp_path, **SHORT)
    RunDir(tmp_path).times_journal.write_text("{\n")
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=r"times.jsonl, line 1 is damaged"):
        resume(tmp_path / "checkpoint_task_0")
    assert contents(tmp_path) == before


def test_a_resume_says_which_model_it_loads_into_which_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = {**SHORT["logging"], "keep_evaluation_episodes": 0}
    toy_run(tmp_path / "run", **{**SHORT, "logging": kept})
    capsys.readouterr()
    assert main(["train", "--resume_from", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr().out
    assert f"loading tabular for {tmp_path / 'run'}\n" in printed
    assert "grpo-cl view" not in printed  # the run keeps no evaluation episodes


def test_the_end_of_a_stage_is_resumed_exactly_and_later_results_are_moved_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = toy_run(tmp_path, **SHORT)
    before = contents(tmp_path)
    with caplog.at_level(logging.WARNING):
        again = resume(tmp_path / "checkpoint_task_0")
    assert fingerprint(again) == fingerprint(whole)
    after = contents(tmp_path)
    aside = "cut_off/1_from_step_00000002/"
    assert caplog.messages == [
        "resumed from step 2: 1 later checkpoints, 1 stage models, 6 metrics lines and 128 "
        f"episodes were moved to {tmp_path / aside}"
    ]
    kept = {name: data for name, data in after.items() if not name.startswith("cut_off/")}
    timed = ("times.jsonl", "trajectories.json", "MANIFEST.json")  # and sums over these
    same = [name for name in before if not name.endswith(timed) and "state" not in name]
    assert {name: kept[name] for name in same} == {name: before[name] for name in same}
    assert (
        after[f"{aside}checkpoint_task_1/model/model.safetensors"]
        == (before["checkpoint_task_1/model/model.safetensors"])
    )
    tails = {"metrics.jsonl": 6, "trajectories.jsonl": 128}
    for name, count in tails.items():
        assert before[name].endswith(after[aside + name])
        assert after[aside + name].count(b"\n") == count


def test_a_resume_that_cannot_load_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    toy_run(tmp_path, **SHORT)
    stored = json.loads(RunDir(tmp_path).config.read_text())
    stored["lora"]["r"] = 2  # as if the run had trained an adapter: its weights do not fit
    RunDir(tmp_path).config.write_text(json.dumps(stored))
    for checkpoint in RunDir(tmp_path).checkpoints_dir.iterdir():
        (checkpoint / "config.json").write_text(json.dumps(stored))
        (checkpoint / MANIFEST).unlink()
        _seal(checkpoint)
    before = contents(tmp_path)
    for path in (tmp_path / "checkpoint_task_0", tmp_path):
        with pytest.raises(CheckpointError, match="has other weights than when the run began"):
            resume(path)
        assert contents(tmp_path) == before


def test_journals_that_do_not_fit_the_checkpoint_are_refused_before_files_change(
    tmp_path: Path,
) -> None:
    toy_run(tmp_path, **SHORT)
    RunDir(tmp_path).trajectories_journal.write_bytes(b"{}\n")
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=r"line 1 is not the one that was written; restore"):
        resume(tmp_path / "checkpoint_task_0")
    assert contents(tmp_path) == before


def test_tasks_of_another_release_are_refused(tmp_path: Path) -> None:
    toy_run(tmp_path, **SHORT)
    file = RunDir(tmp_path).environment
    stored = json.loads(file.read_text())
    del stored["sha256"]
    stored["task_releases"]["toy_right"] = "toy 0.0"
    file.write_text(json.dumps(with_checksum(stored)))
    with pytest.raises(ConfigError, match=r"toy_right are 'toy 0.0' in the run .* --fork DIR"):
        resume(tmp_path)


def test_more_steps_apply_to_the_present_stage_and_later_ones(tmp_path: Path) -> None:
    GRPOTrainer(toy_config(tmp_path, **SHORT)).train(until=Position(stage=1, step=2))
    trainer = resume(tmp_path, num_steps_per_task=3)
    metrics = RunDir(tmp_path).read_metrics()
    assert [len(metrics[f"task_{stage}/train"]) for stage in (0, 1)] == [2, 3]
    assert trainer.global_step == 5
    lines = RunDir(tmp_path).trajectories_journal.read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == sorted(64 * list(range(5)))
    made = json.loads(RunDir(tmp_path).config_changes.read_text())
    change = {"name": "num_steps_per_task", "before": 2, "after": 3}
    assert made == [{"step": 4, "changes": [change]}]
    assert json.loads(RunDir(tmp_path).config.read_text())["num_steps_per_task"] == 3
    assert (
        "num_steps_per_task" in write_report(tmp_path).read_text().split("Changed settings</h3>")[1]
    )
    with pytest.raises(ConfigError, match=r"3 in the run .* and 9 was given, but all its stages"):
        resume(tmp_path, num_steps_per_task=9)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["sequential", "der", "kl_old", "ewc"])
def test_appended_domains_are_trained_as_if_they_had_been_there_from_the_start(
    algorithm: str, tmp_path: Path
) -> None:
    order = ("toy_left", "toy_right", "toy_up")
    whole = toy_run(tmp_path / "whole", **SHORT, cl_algorithm=algorithm, task_order=order)
    toy_run(tmp_path / "run", **SHORT, cl_algorithm=algorithm)
    appended = resume(tmp_path / "run", task_order=order)
    assert fingerprint(appended) == fingerprint(whole)
    one, two = (RMatrix.load(RunDir(tmp_path / name).r_matrix) for name in ("whole", "run"))
    assert two.domains == order
    assert [two.cell(row.after, "toy_up") is None for row in one.rows] == [True, True, True, False]
    assert all(
        two.cell(row.after, domain) == row.cells[domain]
        for row in one.rows
        for domain in order
        if two.cell(row.after, domain) is not None
    )


@pytest.mark.slow
def test_a_change_that_was_cut_off_is_recorded_where_it_applies_now(tmp_path: Path) -> None:
    toy_run(tmp_path, **SHORT)
    order = ["toy_left", "toy_right", "toy_up"]
    resume(tmp_path, task_order=tuple(order))
    resume(tmp_path / "checkpoint_task_0")
    (made,) = json.loads(RunDir(tmp_path).config_changes.read_text())
    assert made["step"] == 2
    assert [change["after"] for change in made["changes"]] == [order]
    assert len(RMatrix.load(RunDir(tmp_path).r_matrix).rows) == 4


def test_a_run_directory_in_use_is_refused_and_the_process_is_named(tmp_path: Path) -> None:
    toy_run(tmp_path, **SHORT)
    before = contents(tmp_path)
    with locked(tmp_path, remedy="wait"):
        with pytest.raises(ConfigError, match=r"is in use by process \d+ on .* since"):
            resume(tmp_path)
        assert main(["train", "--resume_from", str(tmp_path)]) == 2
    assert contents(tmp_path) == before


def test_a_run_holds_its_lock_while_it_trains_and_releases_it(tmp_path: Path) -> None:
    class Nested(GRPOTrainer):
        def train_step(self, domain: str) -> dict[str, float]:
            with pytest.raises(ConfigError, match="is in use by process"):
                resume(tmp_path)
            return super().train_step(domain)

    Nested(toy_config(tmp_path, **SHORT)).train()
    assert not (tmp_path / "lock").exists()
    resume(tmp_path)


def test_checkpoints_at_the_ends_of_stages_are_kept_unless_told(tmp_path: Path) -> None:
    toy_run(tmp_path / "kept", **SHORT)
    lean = {**SHORT["logging"], "keep_stage_ends": False}
    toy_run(tmp_path / "lean", **{**SHORT, "logging": lean})
    kept, last = (
        sorted(path.name for path in RunDir(tmp_path / name).checkpoints_dir.iterdir())
        for name in ("kept", "lean")
    )
    assert kept == ["step_00000002", "step_00000004"]
    assert last == ["step_00000004"]
    with pytest.raises(ConfigError, match="was not kept"):
        resume(tmp_path / "lean" / "checkpoint_task_0")


def test_each_stage_is_announced_with_its_number_of_training_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy_run(tmp_path, **SHORT)
    lines = capsys.readouterr().out.splitlines()
    assert lines.count("Task 0: TOY_LEFT, training on 8 tasks") == 1
    assert lines.count("Task 1: TOY_RIGHT, training on 8 tasks") == 1


@pytest.mark.slow
def test_a_stage_is_evaluated_with_the_settings_of_its_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy_run(tmp_path, **{**SHORT, "evaluation": {"trials": 8}})
    matrix = RMatrix.load(RunDir(tmp_path).r_matrix)
    model = tmp_path / "checkpoint_task_0" / "model"
    for words in ([str(model.parent)], [str(model)], ["--model_name_or_path", str(model)]):
        capsys.readouterr()
        assert main(["evaluate", *words]) == 0
        cells = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert {cell["domain"]: cell["reward_mean"] for cell in cells} == {
            domain: cell.mean for domain, cell in matrix.rows[1].cells.items()
        }
    assert main(["evaluate", str(tmp_path), "--domain", "toy_right"]) == 0
    last = matrix.cell("toy_right", "toy_right")
    assert last is not None
    assert json.loads(capsys.readouterr().out)["reward_mean"] == last.mean
    assert main(["evaluate", str(tmp_path / "missing")]) == 2
    assert "neither a run nor a stage" in capsys.readouterr().err


def test_a_stage_model_with_a_flipped_bit_is_not_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy_run(tmp_path, **SHORT)
    weights = tmp_path / "checkpoint_task_1" / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    for words in ([str(tmp_path)], ["--model_name_or_path", str(weights.parent)]):
        assert main(["evaluate", *words]) == 1
        assert "model.safetensors fails its checksum" in capsys.readouterr().err


@pytest.mark.slow
def test_a_refusal_of_the_main_rank_ends_all_ranks(tmp_path: Path) -> None:
    toy_run(tmp_path, **SHORT)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    code = (
        "import sys; from pathlib import Path; from grpo_cl.config import GRPOConfig; "
        "from grpo_cl.trainer import GRPOTrainer; "
        "GRPOTrainer(GRPOConfig(resume_from=Path(sys.argv[1]), batch_size_per_gpu=4)).train()"
    )
    script = tmp_path.parent / "resume.py"
    script.write_text(code)
    command = [*launcher, str(script), str(tmp_path)]
    with locked(tmp_path, remedy="wait"):
        refused = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert refused.returncode != 0
    assert "is in use by process" in refused.stderr
    assert "another rank could not begin the run" in refused.stderr
    subprocess.run(command, capture_output=True, check=True, timeout=200)


@pytest.mark.slow
def test_an_older_checkpoint_without_recorded_changes_is_resumed(tmp_path: Path) -> None:
    GRPOTrainer(toy_config(tmp_path / "run", **SHORT)).train(until=Position(stage=0, step=2))
    checkpoint = tmp_path / "run" / "checkpoints" / "step_00000002"
    state = json.loads((checkpoint / "state.json").read_text())
    for name in ("format", "changes", "checksums", "tasks_per_step"):
        del state[name]
    shutil.rmtree(checkpoint)
    toy_run(tmp_path / "whole", **SHORT)
    GRPOTrainer(toy_config(tmp_path / "again", **SHORT)).train(until=Position(stage=0, step=2))
    files = RunDir(tmp_path / "again")

    def fill(target: Any) -> None:
        source = tmp_path / "again" / "checkpoints" / "step_00000002"
        shutil.copytree(source, target.root, dirs_exist_ok=True)
        (target.root / "MANIFEST.json").unlink()
        target.state.write_text(json.dumps(state))

    files.save_step(2, fill, keep=2)
    resume(tmp_path / "again")
    assert files.metrics_journal.read_bytes() == (
        RunDir(tmp_path / "whole").metrics_journal.read_bytes()
    )
