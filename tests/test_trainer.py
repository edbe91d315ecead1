import hashlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from safetensors.torch import load_file

from grpo_cl.algorithms import SequentialCL
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.report import write_report
from grpo_cl.rundir import RunDir, resume_point
from grpo_cl.trainer import GRPOTrainer
from grpo_cl.types import Task
from small_runs import RareWords, make_policy, small_config, small_trainer
from toy_runs import toy_config, toy_run


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def whole(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    log_dir = tmp_path_factory.mktemp("runs") / "whole"
    small_trainer(small_config(policy, log_dir)).train()
    return log_dir


def traces(run: Path) -> dict[str, str]:
    """What must be the same in two runs of the same description, bit for bit."""
    files = RunDir(run)
    stages = [files.stage_checkpoint(stage).model_dir / "model.safetensors" for stage in (0, 1)]
    kept = [files.metrics_journal, files.trajectories_journal, files.r_matrix, *stages]
    return {path.name + str(place): digest(path) for place, path in enumerate(kept)}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_run_leaves_the_files_it_promises(whole: Path) -> None:
    run = RunDir(whole)
    metrics = json.loads(run.metrics.read_text())
    assert {"task_0/train", "task_0/eval", "task_1/train", "transfer"} <= set(metrics)
    step = metrics["task_1/train"][-1]
    rates = ("pass_rate", "tool_accuracy")
    for name in ("loss", "reward_mean", "reward_max", *rates, "zero_variance_groups"):
        assert name in step
    assert (run.stage_checkpoint(1).model_dir / "config.json").exists()
    assert write_report(whole).exists()


def test_all_domains_are_measured_before_the_first_and_after_every_stage(whole: Path) -> None:
    matrix = RMatrix.load(RunDir(whole).r_matrix)
    assert [row.after for row in matrix.rows] == ["base", "mock", "telecom"]
    assert all(set(row.cells) == {"mock", "telecom"} for row in matrix.rows)


def test_weights_move_and_trained_tokens_are_those_that_were_sampled(whole: Path) -> None:
    stages = [RunDir(whole).stage_checkpoint(stage).model_dir for stage in (0, 1)]
    assert digest(stages[0] / "model.safetensors") != digest(stages[1] / "model.safetensors")
    lines = RunDir(whole).trajectories_journal.read_text().splitlines()
    assert len(lines) == 2 * 2 * 2 * 3
    for line in lines:
        tokens = json.loads(line)["tokens"]
        assert len(tokens["logprobs"]) == sum(tokens["mask"]) > 0
        assert len(tokens["ids"]) == len(tokens["mask"])


def test_the_same_seed_gives_the_same_run(policy: Path, whole: Path, tmp_path: Path) -> None:
    small_trainer(small_config(policy, tmp_path / "again")).train()
    assert traces(tmp_path / "again") == traces(whole)


EVERY_SECOND = {"trackers": (), "save_interval": 2}


class Stopped(Exception):  # noqa: N818
    """A power cut, as far as a process can tell."""


@pytest.mark.parametrize("steps", [1, 3])
def test_a_run_that_stops_anywhere_ends_as_if_it_had_not(
    policy: Path, whole: Path, tmp_path: Path, steps: int
) -> None:
    class Failing(RareWords):
        def post_step_hook(self, trainer: object, domain: str) -> None:
            nonlocal steps
            steps -= 1
            if steps < 0:
                raise Stopped

    config = small_config(policy, tmp_path / "run")
    trainer = GRPOTrainer(config)
    trainer.cl_algorithm = Failing()
    with pytest.raises(Stopped):
        trainer.train()
    small_trainer(config.model_copy(update={"resume_from": tmp_path / "run"})).train()
    assert traces(tmp_path / "run") == traces(whole)


def test_measurements_within_a_stage_are_there_once_after_a_resume(tmp_path: Path) -> None:
    often = {"num_steps_per_task": 4, "eval_interval": 2, "logging": EVERY_SECOND}
    toy_run(tmp_path / "whole", **often)

    class Failing(SequentialCL):
        def augment_batch(self, new_tasks: Sequence[Task], current_domain: str) -> Sequence[Task]:
            if trainer.position == (0, 2):
                raise Stopped
            return new_tasks

    trainer = GRPOTrainer(toy_config(tmp_path / "cut", **often))
    trainer.cl_algorithm = Failing()
    with pytest.raises(Stopped):
        trainer.train()
    toy_run(tmp_path / "cut", **often, resume_from=tmp_path / "cut")
    whole, cut = (RunDir(tmp_path / name).read_metrics() for name in ("whole", "cut"))
    assert cut == whole
    assert [record["step"] for record in whole["task_0/eval"][2:4]] == [2, 4]


def test_every_domain_learned_so_far_is_measured_within_a_stage(tmp_path: Path) -> None:
    toy_run(tmp_path, num_steps_per_task=8, eval_interval=4)
    metrics = RunDir(tmp_path).read_metrics()
    within = [
        [(r["step"], r["domain"]) for r in metrics[f"task_{stage}/eval"] if "after" not in r]
        for stage in (0, 1)
    ]
    assert within[0] == [(4, "toy_left"), (8, "toy_left")]
    assert within[1] == [(s, name) for s in (4, 8) for name in ("toy_left", "toy_right")]
    # The stability gap is logged with the other scores once old domains were watched.
    first, last = metrics["transfer"][1:]
    left = [r for r in metrics["task_1/eval"] if r["domain"] == "toy_left"]
    learned = metrics["task_0/eval"][-2]
    assert (learned["domain"], learned["after"]) == ("toy_left", "toy_left")
    lowest = min(record["reward_mean"] for record in left)
    assert "stability_gap" not in first
    assert last["stability_gap"] == learned["reward_mean"] - lowest > 0
    newest = metrics["task_1/eval"][-1]["reward_mean"]
    assert last["worst_case_performance"] == (newest + lowest) / 2


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_bit_for_bit_as_an_uninterrupted_one(
    policy: Path, whole: Path, tmp_path: Path
) -> None:
    script = Path(__file__).parent / "small_runs.py"
    log_dir = tmp_path / "killed"
    chance = Random(7)
    for attempt in range(12):
        resume = ["resume"] if RunDir(log_dir).config.exists() else []
        command = [sys.executable, str(script), str(policy), str(log_dir), *resume]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            if attempt < 4:
                _wait_for(log_dir, run)
                time.sleep(chance.uniform(0.1, 2.5))
                run.send_signal(signal.SIGKILL)
            run.wait()
        if run.returncode == 0:
            break
    assert traces(log_dir) == traces(whole)


@pytest.mark.slow
def test_a_run_that_is_asked_to_end_saves_and_can_go_on(
    policy: Path, whole: Path, tmp_path: Path
) -> None:
    script, log_dir = Path(__file__).parent / "small_runs.py", tmp_path / "asked"
    command = [sys.executable, str(script), str(policy), str(log_dir)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        _wait_for(log_dir, run)
        _wait_for(log_dir, run)
        run.terminate()
        assert run.wait() == 143
    assert resume_point(log_dir).checkpoint is not None
    subprocess.run([*command, "resume"], check=True, capture_output=True)
    assert traces(log_dir) == traces(whole)


def _wait_for(log_dir: Path, run: subprocess.Popen[bytes]) -> None:
    known = _size(log_dir)
    while run.poll() is None and _size(log_dir) == known:
        time.sleep(0.05)


def _size(log_dir: Path) -> int:
    journal = RunDir(log_dir).metrics_journal
    return journal.stat().st_size if journal.exists() else -1


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(
    policy: Path, whole: Path, tmp_path: Path
) -> None:
    config = small_config(policy, tmp_path / "run", logging={"trackers": (), "save_interval": 1})
    small_trainer(config).train()
    newest = resume_point(tmp_path / "run").checkpoint
    assert newest is not None
    weights = newest.policy_dir / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    point = resume_point(tmp_path / "run")
    assert point.checkpoint is not None
    assert point.checkpoint.root != newest.root
    assert "weights.safetensors" in point.damaged[0].problem
    small_trainer(config.model_copy(update={"resume_from": tmp_path / "run"})).train()
    assert traces(tmp_path / "run") == traces(whole)


def test_a_directory_that_holds_a_run_is_not_overwritten(policy: Path, whole: Path) -> None:
    with pytest.raises(ConfigError, match="holds a run already"):
        small_trainer(small_config(policy, whole)).train()


@pytest.mark.slow
def test_two_processes_learn_what_one_does(policy: Path, whole: Path, tmp_path: Path) -> None:
    script = Path(__file__).parent / "small_runs.py"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*launcher, str(script), str(policy), str(tmp_path / "two")]
    subprocess.run(command, check=True, capture_output=True)
    one, two = (
        load_file(RunDir(run).stage_checkpoint(1).model_dir / "model.safetensors")
        for run in (whole, tmp_path / "two")
    )
    assert one.keys() == two.keys()
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-4
