import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from grpo_cl.algorithms import ALGORITHMS
from grpo_cl.errors import ConfigError
from grpo_cl.policy.learner.fsdp import shard_policy
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.model.tabular import new_tabular
from grpo_cl.policy.model.tiny_model import Size
from grpo_cl.policy.runtime import PolicyRuntime
from grpo_cl.runs.layout import RunDir
from grpo_cl.runs.resume import resume_point
from grpo_cl.trainer import GRPOTrainer
from sharded_work import UNSHARDED, cases
from small_runs import make_policy, small_config
from tiny_learners import settings, tiny_module, with_adapter
from toy_runs import LORA, toy_config
from two_processes import run_two_processes

SINGLE_PROCESS = DistributedContext(device=torch.device("cpu"))


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_policy(tmp_path_factory.mktemp("policy"), Size(width=64, layers=2))


def train_on_two_ranks(policy: Path, log_dir: Path, *resume: str, **changes: Any) -> None:
    checkpoints = {"logging": {"trackers": [], "save_interval": 1, "keep_checkpoints": 9}}
    run_two_processes("small_runs.py", policy, log_dir, *resume, json.dumps(checkpoints | changes))


def final_model(log_dir: Path) -> dict[str, torch.Tensor]:
    return load_file(RunDir(log_dir).stage_checkpoint(1).model_dir / "model.safetensors")


def test_sharding_over_one_process_is_an_error(policy: Path, tmp_path: Path):
    with pytest.raises(
        ConfigError, match=r"there is one rank; start with torchrun .* leave sharding"
    ):
        PolicyRuntime(small_config(policy, tmp_path, sharding="fsdp"))


def test_sharding_a_model_without_layers_is_an_error():
    with pytest.raises(ConfigError, match=r"TabularForCausalLM names none .* leave sharding out"):
        shard_policy(new_tabular("float32"), SINGLE_PROCESS)


def test_sharding_an_adapter_of_the_head_is_an_error():
    config = settings(lora={"r": 4})
    module = with_adapter(tiny_module("float32", tied=False), config, targets=["lm_head", "q_proj"])
    with pytest.raises(ConfigError, match=r"lm_head.* is outside; leave embeddings and head out"):
        shard_policy(module, SINGLE_PROCESS)


def test_adding_adapters_to_a_sharded_policy_is_an_error(tmp_path: Path):
    config = toy_config(tmp_path, cl_algorithm="olora", lora=LORA)
    runtime = PolicyRuntime(config)
    with pytest.raises(ConfigError, match=r"sharding=fsdp does not support; leave sharding out"):
        GRPOTrainer(config.model_copy(update={"sharding": "fsdp"}), policy=runtime)


@pytest.mark.slow
def test_sharded_run_equals_an_unsharded_one_and_resumes_exactly(policy: Path, tmp_path: Path):
    train_on_two_ranks(policy, tmp_path / "unsharded")
    train_on_two_ranks(policy, tmp_path / "sharded", sharding="fsdp")
    unsharded, sharded = final_model(tmp_path / "unsharded"), final_model(tmp_path / "sharded")
    assert unsharded.keys() == sharded.keys()  # tied weights are written once
    assert max(float((unsharded[name] - sharded[name]).abs().max()) for name in unsharded) < 1e-5

    resumed = tmp_path / "resumed"
    shutil.copytree(tmp_path / "sharded", resumed)
    while (newest := resume_point(resumed).checkpoint) and int(newest.root.name[-6:]) > 1:
        shutil.rmtree(newest.root)
    train_on_two_ranks(policy, resumed, "resume", sharding="fsdp")
    assert RunDir(resumed).read_metrics() == RunDir(tmp_path / "sharded").read_metrics()
    resumed_model = final_model(resumed)
    assert all(torch.equal(resumed_model[name], sharded[name]) for name in sharded)


def assert_same_weights(policy: Path, folder: Path, names: list[str]) -> None:
    """Train each case sharded and unsharded."""
    run_two_processes("sharded_work.py", policy, folder, *names, timeout_s=900)
    results = json.loads((folder / "results.json").read_text())
    assert [*results] == names
    assert all(result["change"] > 1e-4 for result in results.values()), results
    assert all(result["difference"] < 1e-5 for result in results.values()), results


@pytest.mark.slow
def test_an_algorithm_gives_the_same_weights_in_a_sharded_policy(policy: Path, tmp_path: Path):
    """Weights are swapped, penalised, projected and averaged."""
    names = ["agem", "ewc", "kl_old states=current", "merge", "rapo"]
    assert_same_weights(policy, tmp_path, names)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_every_algorithm_and_option_gives_the_same_weights_in_a_sharded_policy(
    policy: Path, tmp_path: Path
):
    names = [case.name for case in cases()]
    assert {name.split()[0] for name in names} == ALGORITHMS.keys() - UNSHARDED.keys()
    assert_same_weights(policy, tmp_path, names)
