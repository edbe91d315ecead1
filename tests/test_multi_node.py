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

from grpo_cl.policy.model import PolicyModel
from grpo_cl.policy.tiny_model import Size
from grpo_cl.rundir import RunDir
from serving import served
from small_runs import make_policy, small_config

TESTS = Path(__file__).parent
CLUSTER = TESTS.parent / "configs" / "cluster"
SHARDED = {"sharding": "fsdp", "num_steps_per_task": 1}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def run_nodes(
    launches: Sequence[Sequence[str]], policy: Path, log_dir: Path, **settings: object
) -> None:
    """Start one torchrun per node and wait for all of them."""
    path = f"{TESTS}:{TESTS.parent / 'src'}"
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    words = [
        str(TESTS / "small_runs.py"),
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
        told = [node.communicate(timeout=240)[1] for node in nodes]
    finally:
        for node in nodes:
            node.kill()  # only one that is left hanging: the others have ended
            node.wait()
    assert [node.returncode for node in nodes] == [0] * len(nodes), "\n".join(told)[-3000:]


@pytest.mark.slow
def test_two_nodes_and_a_rollout_server_learn_what_one_node_learns(tmp_path: Path):
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


def test_the_scripts_for_clusters_can_be_read_by_what_runs_them():
    shell = shutil.which("bash") or "sh"
    subprocess.run([shell, "-n", str(CLUSTER / "slurm.sh")], check=True)
    tree = ast.parse((CLUSTER / "ray_launch.py").read_text())
    imported = {
        alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names
    }
    assert "ray" not in imported  # help and mistakes are answered without it


def test_the_launcher_on_ray_says_what_it_would_start_without_ray():
    command = [sys.executable, str(CLUSTER / "ray_launch.py"), "--dry_run", "--nodes", "2"]
    words = ["--gpus_per_node", "8", "--", "--config", "run.yaml", "sharding=fsdp"]
    done = subprocess.run([*command, *words], check=True, capture_output=True, text=True)
    told = done.stdout.split()
    assert told[:4] == ["torchrun", "--nnodes=2", "--nproc_per_node=8", "--rdzv_backend=c10d"]
    assert told[-5:] == ["-m", "grpo_cl.train", "--config", "run.yaml", "sharding=fsdp"]
