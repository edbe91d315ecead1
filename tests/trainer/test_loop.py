import hashlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from safetensors.torch import load_file
from typing_extensions import override

from chat_server import ChatServer
from grpo_cl.algorithms import SequentialCL, TrainerView
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.runtime import PolicyRuntime
from grpo_cl.report import write_report
from grpo_cl.runs.checkpoint_state import read_checkpoint_state
from grpo_cl.runs.layout import RunDir
from grpo_cl.runs.resume import resume_point
from grpo_cl.storage.journal import read_journal
from grpo_cl.trainer import GRPOTrainer
from grpo_cl.trainer.run_log import Position
from grpo_cl.types import Task, TrajectoryGroup
from grpo_cl.users.base import STOP
from parameters import mostly_slow
from paths import SUPPORT
from small_runs import HighTokenIdRewards, make_policy, small_config, small_trainer
from toy_runs import toy_config, toy_run
from two_processes import run_two_processes


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


@pytest.mark.slow
def test_run_directory_has_metrics_models_and_report(whole: Path) -> None:
    run = RunDir(whole)
    metrics = json.loads(run.metrics.read_text())
    assert {"task_0/train", "task_0/eval", "task_1/train", "transfer"} <= set(metrics)
    step = metrics["task_1/train"][-1]
    rates = ("pass_rate", "tool_accuracy")
    for name in ("loss", "reward_mean", "reward_max", *rates, "zero_variance_groups"):
        assert name in step
    assert (run.stage_checkpoint(1).model_dir / "config.json").exists()
    assert write_report(whole).exists()


def test_all_domains_are_evaluated_before_the_first_stage_and_after_each(whole: Path) -> None:
    matrix = RMatrix.load(RunDir(whole).r_matrix)
    assert [row.after for row in matrix.rows] == ["base", "mock", "telecom"]
    assert all(set(row.cells) == {"mock", "telecom"} for row in matrix.rows)


def test_weights_change_and_recorded_tokens_are_the_sampled_ones(whole: Path) -> None:
    stages = [RunDir(whole).stage_checkpoint(stage).model_dir for stage in (0, 1)]
    assert digest(stages[0] / "model.safetensors") != digest(stages[1] / "model.safetensors")
    lines = RunDir(whole).trajectories_journal.read_text().splitlines()
    assert len(lines) == 2 * 2 * 2 * 3
    for line in lines:
        tokens = json.loads(line)["tokens"]
        assert len(tokens["logprobs"]) == sum(tokens["mask"]) > 0
        assert len(tokens["ids"]) == len(tokens["mask"])


def test_two_runs_with_one_seed_are_equal_bit_for_bit(
    policy: Path, whole: Path, tmp_path: Path
) -> None:
    small_trainer(small_config(policy, tmp_path / "again")).train()
    assert traces(tmp_path / "again") == traces(whole)


EVERY_SECOND = {"trackers": (), "save_interval": 2}


class Stopped(Exception):  # noqa: N818
    """A power cut, as far as a process can tell."""


@pytest.mark.parametrize("steps", mostly_slow([1, 3], fast=[3]))
def test_resumed_run_equals_the_uninterrupted_run(
    policy: Path, whole: Path, tmp_path: Path, steps: int
) -> None:
    class Failing(HighTokenIdRewards):
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


@pytest.mark.slow
def test_evaluations_within_a_stage_are_logged_once_after_a_resume(tmp_path: Path) -> None:
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
    assert "after" not in whole["task_0/eval"][2] and "after" in whole["task_0/eval"][3]


def test_evaluations_within_a_stage_cover_all_domains_seen_so_far(tmp_path: Path) -> None:
    toy_run(tmp_path, num_steps_per_task=8, eval_interval=4)
    metrics = RunDir(tmp_path).read_metrics()
    within = [
        [(r["step"], r["domain"]) for r in metrics[f"task_{stage}/eval"] if "after" not in r]
        for stage in (0, 1)
    ]
    # Step 8 is the end of the stage, where all domains are evaluated anyway.
    assert within[0] == [(4, "toy_left")]
    assert within[1] == [(4, "toy_left"), (4, "toy_right")]
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
def test_run_killed_at_random_times_and_resumed_equals_the_uninterrupted_run(
    policy: Path, whole: Path, tmp_path: Path
) -> None:
    script = SUPPORT / "small_runs.py"
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
def test_sigterm_saves_a_checkpoint_that_the_run_resumes_from(
    policy: Path, whole: Path, tmp_path: Path
) -> None:
    script, log_dir = SUPPORT / "small_runs.py", tmp_path / "asked"
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


@pytest.mark.slow
def test_resume_skips_a_damaged_checkpoint_and_names_it(
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


@pytest.mark.slow
def test_existing_run_directory_is_not_overwritten(policy: Path, whole: Path) -> None:
    with pytest.raises(ConfigError, match="already holds a run"):
        small_trainer(small_config(policy, whole)).train()


@pytest.mark.slow
def test_two_ranks_with_half_the_batch_each_train_the_same_weights_as_one(
    policy: Path, whole: Path, tmp_path: Path
) -> None:
    half = json.dumps({"batch_size_per_gpu": 1})
    run_two_processes("small_runs.py", policy, tmp_path / "two", half)
    one, two = (
        load_file(RunDir(run).stage_checkpoint(1).model_dir / "model.safetensors")
        for run in (whole, tmp_path / "two")
    )
    assert one.keys() == two.keys()
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-4


def on_two_ranks(config: GRPOConfig) -> GRPOTrainer:
    """A trainer on the first of two ranks, without the other: it cannot communicate."""
    return GRPOTrainer(config, policy=PolicyRuntime(config, ranks=DistributedContext(world_size=2)))


def test_a_step_has_the_batch_of_every_rank(tmp_path: Path) -> None:
    config = toy_config(tmp_path / "run", batch_size_per_gpu=3, gradient_accumulation_steps=2)
    drawn: list[int] = []

    class Drawn(SequentialCL):
        def augment_batch(self, new_tasks: Sequence[Task], current_domain: str) -> Sequence[Task]:
            drawn.append(len(new_tasks))
            raise Stopped

    for trainer in (GRPOTrainer(config), on_two_ranks(config)):
        trainer.cl_algorithm = Drawn()
        with pytest.raises(Stopped):
            trainer.train_step("toy_left")
    assert drawn == [6, 12]


def test_resuming_on_more_ranks_is_refused_unless_a_step_keeps_its_tasks(tmp_path: Path) -> None:
    config = toy_config(tmp_path / "run", num_steps_per_task=1, batch_size_per_gpu=4)
    GRPOTrainer(config).train(until=Position(stage=0, step=1))
    resumed = config.model_copy(update={"resume_from": tmp_path / "run"})
    refusal = (
        r"a step of this run has 4 tasks, and batch_size_per_gpu 4 × gradient_accumulation_steps 1 "
        r"× 2 ranks make 8; start as many ranks as before, or change .* so that they make 4"
    )
    with pytest.raises(ConfigError, match=refusal):
        on_two_ranks(resumed).train()
    halved = on_two_ranks(resumed.model_copy(update={"batch_size_per_gpu": 2}))
    with halved.run_log:
        halved._begin()
    assert halved.position == Position(stage=0, step=1)


def test_checkpoint_without_the_tasks_of_a_step_has_those_of_its_config(tmp_path: Path) -> None:
    config = toy_config(tmp_path / "run", num_steps_per_task=1, batch_size_per_gpu=4)
    GRPOTrainer(config).train(until=Position(stage=0, step=1))
    files = resume_point(tmp_path / "run").checkpoint
    assert files is not None
    assert read_checkpoint_state(files)["tasks_per_step"] == 4
    state = json.loads(files.state.read_text())
    for name in ("format", "tasks_per_step", "changes", "checksums"):
        del state[name]
    files.state.write_text(json.dumps(state))
    assert read_checkpoint_state(files)["tasks_per_step"] == 4


class CountingPolicy(PolicyRuntime):
    """The real policy, with the order of weight syncs, rollouts and updates written down."""

    def __init__(self, config: GRPOConfig) -> None:
        super().__init__(config)
        self.calls: list[str] = []

    @override
    def sync_weights(self) -> None:
        self.calls.append("sync")
        super().sync_weights()

    @override
    def map_over_ranks(
        self, count: int, run: Callable[[Sequence[int]], Sequence[Any]]
    ) -> list[Any]:
        self.calls.append("rollout")
        return super().map_over_ranks(count, run)

    @override
    def update(self, *arguments: Any, **options: Any) -> dict[str, float]:
        self.calls.append("update")
        return super().update(*arguments, **options)


def test_weights_are_synced_once_per_step_and_once_per_evaluation(tmp_path: Path) -> None:
    config = toy_config(tmp_path / "run", num_steps_per_task=1)
    policy = CountingPolicy(config)
    GRPOTrainer(config, policy=policy).train()
    evaluation = ["sync", "rollout"] * len(config.task_order)
    stage = ["sync", "rollout", "update", *evaluation]
    assert policy.calls == [*evaluation, *stage, *stage]


class RecordedHooks(SequentialCL):
    """Writes down the end of each stage."""

    def __init__(self) -> None:
        super().__init__()
        self.finished: list[str] = []

    @override
    def post_task_hook(self, trainer: TrainerView, domain: str) -> None:
        self.finished.append(domain)


@pytest.mark.slow
def test_run_with_a_hosted_user_counts_its_calls_and_the_time_it_waits(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOPBACK_API_KEY", "any")
    role = {"model": "openai-api/loopback/customer"}

    def train(log_dir: Path) -> RunDir:
        with ChatServer(lambda body: f"I need nothing. {STOP}") as server:
            settings = {
                "rollout": {"user": "llm", "prompt": "compact", "max_turns": 2},
                "user": {**role, "base_url": server.url},
                "models": {"cache_dir": None},
                "task_order": ("mock",),
            }
            small_trainer(small_config(policy, log_dir, **settings)).train()
        return RunDir(log_dir)

    first, second = train(tmp_path / "first"), train(tmp_path / "second")
    assert digest(first.metrics_journal) == digest(second.metrics_journal)
    steps = [line for line in read_journal(first.times_journal) if line["kind"] == "train"]
    assert [step["model_calls"] for step in steps] == [6.0, 6.0]  # 2 tasks, 3 episodes each
    for step in steps:
        assert 0 < step["policy_idle_s"] <= step["play_s"]
        assert 0 < step["user_wait_s"] <= step["episode_s"] <= 6 * step["play_s"]
        assert step["scoring_wait_s"] == step["model_calls_failed"] == 0.0
    evaluated = [line for line in read_journal(first.times_journal) if line["kind"] == "eval"]
    assert [line["model_calls"] for line in evaluated] == [2.0, 2.0]


def test_training_until_a_position_stops_at_its_checkpoint_before_the_stage_hook(
    tmp_path: Path,
) -> None:
    config = toy_config(tmp_path / "run", num_steps_per_task=2)
    trainer = GRPOTrainer(config)
    trainer.cl_algorithm = algorithm = RecordedHooks()
    trainer.train(until=Position(stage=0, step=2))
    assert algorithm.finished == []
    checkpoint = resume_point(tmp_path / "run").checkpoint
    assert checkpoint is not None
    assert json.loads(checkpoint.state.read_text())["position"] == {"stage": 0, "step": 2}
    resumed = GRPOTrainer(config.model_copy(update={"resume_from": tmp_path / "run"}))
    resumed.cl_algorithm = algorithm
    resumed.train()
    assert algorithm.finished == ["toy_left", "toy_right"]


class DoubledRewards(SequentialCL):
    """Shapes rewards, so that advantages differ from those of the task's own rewards."""

    @override
    def shape_rewards(self, group: TrajectoryGroup, rewards: Sequence[float]) -> Sequence[float]:
        return [2 * reward for reward in rewards]


def test_buffer_keeps_the_advantages_that_the_update_used(tmp_path: Path) -> None:
    config = toy_config(tmp_path / "run", num_steps_per_task=1, loss={"advantage": "mean"})
    plain, doubled = GRPOTrainer(config), GRPOTrainer(config)
    doubled.cl_algorithm = DoubledRewards()
    for trainer in (plain, doubled):
        trainer.train_step("toy_left")
    pairs = zip(
        plain.trajectory_buffer.records("toy_left"),
        doubled.trajectory_buffer.records("toy_left"),
        strict=True,
    )
    advantages = [(one.mean_advantage, two.mean_advantage) for one, two in pairs]
    assert any(first for first, _ in advantages)
    assert all(second == pytest.approx(2 * first) for first, second in advantages)
