import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from grpo_cl.errors import ConfigError
from grpo_cl.policy.ranks import Ranks
from grpo_cl.policy.runtime import PolicyRuntime
from grpo_cl.policy.sharding import shard_policy
from grpo_cl.policy.tabular import new_tabular
from grpo_cl.policy.tiny_model import Size
from grpo_cl.rundir import RunDir, resume_point
from grpo_cl.trainer import GRPOTrainer
from sharded_work import ALGORITHMS
from small_runs import make_policy, small_config
from tiny_learners import settings, tiny_module, with_adapter
from toy_runs import LORA, toy_config

TESTS = Path(__file__).parent
ALONE = Ranks(device=torch.device("cpu"))


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_policy(tmp_path_factory.mktemp("policy"), Size(width=64, layers=2))


def two_processes(script: str, *arguments: object) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*launcher, str(TESTS / script), *map(str, arguments)]
    path = f"{TESTS}:{TESTS.parent / 'src'}"
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def run_two(policy: Path, log_dir: Path, *resume: str, **changes: Any) -> None:
    many = {"logging": {"trackers": [], "save_interval": 1, "keep_checkpoints": 9}}
    two_processes("small_runs.py", policy, log_dir, *resume, json.dumps(many | changes))


def final_model(log_dir: Path) -> dict[str, torch.Tensor]:
    return load_file(RunDir(log_dir).stage_checkpoint(1).model_dir / "model.safetensors")


def test_a_policy_is_not_spread_over_one_process(policy: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"here is one; start with torchrun .* leave sharding"):
        PolicyRuntime(small_config(policy, tmp_path, sharding="fsdp"))


def test_a_model_without_layers_is_not_sharded():
    with pytest.raises(ConfigError, match="TabularForCausalLM names none; leave sharding out"):
        shard_policy(new_tabular("float32"), ALONE)


def test_an_adapter_of_the_head_is_not_sharded():
    config = settings(lora={"r": 4})
    module = with_adapter(tiny_module("float32", tied=False), config, targets=["lm_head", "q_proj"])
    with pytest.raises(ConfigError, match=r"lm_head.* learns too; leave embeddings and head out"):
        shard_policy(module, ALONE)


def test_adapters_are_not_added_to_a_sharded_policy(tmp_path: Path):
    config = toy_config(tmp_path, cl_algorithm="olora", lora=LORA)
    runtime = PolicyRuntime(config)
    with pytest.raises(ConfigError, match=r"sharding=fsdp is done before; leave sharding out"):
        GRPOTrainer(config.model_copy(update={"sharding": "fsdp"}), policy=runtime)


@pytest.mark.slow
def test_a_sharded_run_ends_as_a_whole_one_and_resumes_exactly(policy: Path, tmp_path: Path):
    run_two(policy, tmp_path / "whole")
    run_two(policy, tmp_path / "sharded", sharding="fsdp")
    whole, sharded = final_model(tmp_path / "whole"), final_model(tmp_path / "sharded")
    assert whole.keys() == sharded.keys()  # tied weights are written once
    assert max(float((whole[name] - sharded[name]).abs().max()) for name in whole) < 1e-5

    cut = tmp_path / "cut"
    shutil.copytree(tmp_path / "sharded", cut)
    while (newest := resume_point(cut).checkpoint) and int(newest.root.name[-6:]) > 1:
        shutil.rmtree(newest.root)
    run_two(policy, cut, "resume", sharding="fsdp")
    assert RunDir(cut).read_metrics() == RunDir(tmp_path / "sharded").read_metrics()
    again = final_model(cut)
    assert all(torch.equal(again[name], sharded[name]) for name in sharded)


@pytest.mark.slow
def test_algorithms_learn_in_a_sharded_policy_what_they_do_in_a_whole_one(
    policy: Path, tmp_path: Path
):
    two_processes("sharded_work.py", policy, tmp_path)
    furthest = json.loads((tmp_path / "results.json").read_text())
    assert furthest.keys() == ALGORITHMS.keys()
    assert max(furthest.values()) < 1e-5
