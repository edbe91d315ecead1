import json
import shutil
from collections.abc import Generator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import CheckpointError, EngineError
from grpo_cl.policy.model.policy_model import PolicyModel
from grpo_cl.policy.model.tiny_model import Size
from grpo_cl.runs.layout import CheckpointFiles, RunDir
from grpo_cl.trainer import GRPOTrainer
from grpo_cl.trainer.rollouts import Rollouts, RolloutsAhead
from serving import served
from small_runs import make_policy, small_config, small_trainer
from toy_runs import toy_config
from two_processes import run_two_processes

STEPS = 4


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory: pytest.TempPathFactory) -> Rollouts:
    trainer = GRPOTrainer(toy_config(tmp_path_factory.mktemp("toy")))
    return trainer._begin_rollouts("toy_left", 0)()


def test_rollouts_are_taken_once_when_they_have_ended(rollouts: Rollouts) -> None:
    ahead, may_end = RolloutsAhead(), Event()

    def play() -> Rollouts:
        assert may_end.wait(60)
        return rollouts

    assert ahead.take() is None
    ahead.start(play)
    may_end.set()
    ahead.wait()
    assert ahead.take() is rollouts
    assert ahead.take() is None


def test_an_error_of_rollouts_is_raised_where_they_are_needed(rollouts: Rollouts) -> None:
    def fail() -> Rollouts:
        raise EngineError("all servers are dead")

    ahead = RolloutsAhead()
    ahead.start(fail)
    with pytest.raises(EngineError, match="all servers are dead"):
        ahead.wait()
    ahead.close()  # the run has ended by that error already
    ahead.start(lambda: rollouts)
    assert ahead.take() is rollouts


def test_saved_rollouts_are_restored_equal(rollouts: Rollouts, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.json"
    saved, restored = RolloutsAhead(), RolloutsAhead()
    saved.save(path)
    assert not path.exists()
    restored.load(path)
    assert restored.take() is None
    saved.start(lambda: rollouts)
    saved.save(path)
    restored.load(path)
    assert restored.take() == rollouts == saved.take()


def test_damaged_rollouts_are_refused(rollouts: Rollouts, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.json"
    ahead = RolloutsAhead()
    ahead.start(lambda: rollouts)
    ahead.save(path)
    path.write_text(path.read_text().replace('"num_resampled"', '"number"'))
    with pytest.raises(CheckpointError, match="is not the rollouts of the next step"):
        RolloutsAhead().load(path)


def test_stale_rollouts_need_servers_and_importance_sampling() -> None:
    with pytest.raises(ValueError, match=r"max_staleness=1 requires sampling\.engine='server'"):
        GRPOConfig.model_validate({"sampling": {"max_staleness": 1}})
    sampling = {"max_staleness": 1, "engine": "server", "servers": ["http://127.0.0.1:1"]}
    with pytest.raises(ValueError, match=r"which loss\.importance_cap corrects for"):
        GRPOConfig.model_validate({"sampling": sampling, "loss": {"importance_cap": None}})
    assert GRPOConfig.model_validate({"sampling": sampling}).sampling.max_staleness == 1


class Runs:
    """Runs of one policy over one server on loopback."""

    def __init__(self, policy: Path, folder: Path, url: str) -> None:
        self._policy, self._folder, self._url = policy, folder, url

    def config(self, name: str, *, max_staleness: int = 1, **changes: Any) -> GRPOConfig:
        sampling = {"max_context": 512, "dialect": "compact", "slots": 8, "engine": "server"}
        sampling |= {"servers": [self._url], "max_staleness": max_staleness}
        settings = {"task_order": ("mock",), "num_steps_per_task": STEPS, "sampling": sampling}
        return small_config(self._policy, self._folder / name, **settings | changes)

    def train(self, name: str, **changes: Any) -> RunDir:
        config = self.config(name, **changes)
        small_trainer(config).train()
        return RunDir(config.log_dir)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Generator[Runs]:
    folder = tmp_path_factory.mktemp("runs")
    policy = make_policy(folder / "policy", Size(width=64, layers=2))
    base = small_config(policy, folder / "served")
    with served(PolicyModel.load(base), base, slots=8, folders=[folder]) as server:
        yield Runs(policy, folder, server.url)


@pytest.fixture(scope="module")
def stale(runs: Runs) -> RunDir:
    keep = {"trackers": (), "save_interval": 1, "keep_checkpoints": STEPS}
    return runs.train("stale", logging=keep)


def tokens(run: RunDir) -> list[list[list[int]]]:
    """The tokens of the training episodes, by step."""
    steps: dict[int, list[list[int]]] = {}
    for line in run.trajectories_journal.read_text().splitlines():
        episode = json.loads(line)
        steps.setdefault(episode["step"], []).append(episode["tokens"]["ids"])
    return [steps[step] for step in sorted(steps)]


@pytest.mark.slow
def test_each_step_but_the_first_has_episodes_of_the_weights_before_the_last_update(
    runs: Runs, stale: RunDir
) -> None:
    fresh = runs.train("fresh", max_staleness=0)
    without_updates = runs.train("constant", max_staleness=0, learning_rate=1e-30)
    assert tokens(stale)[:2] == tokens(without_updates)[:2]
    assert tokens(stale)[2] != tokens(without_updates)[2]
    assert tokens(stale)[0] == tokens(fresh)[0]
    assert tokens(stale)[1] != tokens(fresh)[1]


def metrics(run: RunDir) -> dict[str, list[dict[str, Any]]]:
    return json.loads(run.metrics.read_text())


def checkpoints(run: RunDir) -> list[CheckpointFiles]:
    return [CheckpointFiles(path) for path in sorted(run.checkpoints_dir.iterdir())]


def test_a_run_resumed_within_a_stage_trains_on_the_rollouts_of_its_checkpoint(
    runs: Runs, stale: RunDir
) -> None:
    assert [files.rollouts.exists() for files in checkpoints(stale)] == [True, True, True, False]
    again = RunDir(stale.root.with_name("again"))
    shutil.copytree(stale.root, again.root)
    config = runs.config("again", resume_from=checkpoints(again)[1].root)
    small_trainer(config).train()
    assert tokens(again) == tokens(stale)
    assert again.r_matrix.read_bytes() == stale.r_matrix.read_bytes()
    # Later steps have log-probs of other batches on the server, which differ by rounding.
    assert metrics(again)["task_0/train"][:3] == metrics(stale)["task_0/train"][:3]


@pytest.mark.slow
def test_evaluations_within_a_stage_leave_the_next_rollouts_as_they_are(
    runs: Runs, stale: RunDir
) -> None:
    assert tokens(runs.train("evaluated", eval_interval=1)) == tokens(stale)


@pytest.mark.slow
def test_collectives_of_two_threads_do_not_mix() -> None:
    run_two_processes("thread_work.py")
