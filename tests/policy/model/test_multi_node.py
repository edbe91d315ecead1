import ast
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from grpo_cl.policy.model.policy_model import PolicyModel
from grpo_cl.policy.model.tiny_model import Size
from grpo_cl.runs.layout import RunDir
from paths import CONFIGS, ROOT, SUPPORT
from serving import served
from small_runs import make_policy, small_config

CLUSTER = CONFIGS / "cluster"
SHARDED = {"sharding": "fsdp", "num_steps_per_task": 1}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def run_nodes(
    launches: Sequence[Sequence[str]], policy: Path, log_dir: Path, **settings: object
) -> None:
    """Start one torchrun per node and wait for all of them."""
    path = f"{SUPPORT}:{ROOT / 'src'}"
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    words = [
        str(SUPPORT / "small_runs.py"),
        str(policy),
        str(log_dir),
        json.dumps(SHARDED | settings),
    ]
    nodes = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *launch, *words],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for launch in launches
    ]
    try:
        output = [node.communicate(timeout=240)[1] for node in nodes]
    finally:
        for node in nodes:
            node.kill()  # no effect on nodes that have ended
            node.wait()
    assert [node.returncode for node in nodes] == [0] * len(nodes), "\n".join(output)[-3000:]


@pytest.mark.slow
def test_two_nodes_with_a_rollout_server_train_the_same_weights_as_one_node(tmp_path: Path):
    policy = make_policy(tmp_path / "policy", Size(width=64, layers=2))
    one, two = tmp_path / "one", tmp_path / "two"
    run_nodes([["--standalone", "--nproc_per_node=2"]], policy, one)
    config = small_config(policy, tmp_path)
    with served(PolicyModel.load(config), config, slots=8, folders=[tmp_path]) as server:
        sampling = config.sampling.model_dump() | {"engine": "server", "servers": [server.url]}
        run_nodes(two_nodes(), policy, two, sampling=sampling)
    weights, expected = final_weights(two), final_weights(one)
    assert weights.keys() == expected.keys()
    assert all(torch.allclose(weights[name], expected[name], atol=1e-5) for name in expected)


def two_nodes() -> list[list[str]]:
    endpoint = f"--rdzv_endpoint=localhost:{free_port()}"
    return [["--nnodes=2", "--nproc_per_node=1", "--rdzv_backend=c10d", endpoint]] * 2


def final_weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(RunDir(run).stage_checkpoint(1).model_dir / "model.safetensors")


def test_cluster_scripts_have_valid_syntax():
    shell = shutil.which("bash") or "sh"
    subprocess.run([shell, "-n", str(CLUSTER / "slurm.sh")], check=True)
    tree = ast.parse((CLUSTER / "ray_launch.py").read_text())
    imported = {
        alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names
    }
    assert "ray" not in imported  # --help and argument errors work without it


def test_dry_run_of_the_ray_launcher_prints_the_command_without_ray():
    command = [sys.executable, str(CLUSTER / "ray_launch.py"), "--dry_run", "--nodes", "2"]
    words = ["--gpus_per_node", "8", "--", "--config", "run.yaml", "sharding=fsdp"]
    process = subprocess.run([*command, *words], check=True, capture_output=True, text=True)
    output = process.stdout.split()
    assert output[:4] == ["torchrun", "--nnodes=2", "--nproc_per_node=8", "--rdzv_backend=c10d"]
    assert output[-5:] == ["-m", "grpo_cl.train", "--config", "run.yaml", "sharding=fsdp"]
