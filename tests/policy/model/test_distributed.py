import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import rank_work
from grpo_cl.errors import ConfigError
from grpo_cl.policy.model.distributed import DistributedContext
from paths import ROOT, SUPPORT


def torchrun(mode: str, folder: Path, *options: str) -> dict[str, Any]:
    path = f"{SUPPORT}:{ROOT / 'src'}"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    work = [*options, str(SUPPORT / "rank_work.py"), mode, str(folder)]
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [*command, *work], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads((folder / "results.json").read_text())


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("two_ranks")
    return torchrun("learn", folder), folder


def test_collectives_of_one_process_are_the_identity():
    with DistributedContext(device=torch.device("cpu")) as ranks:
        assert (ranks.rank, ranks.world_size, ranks.is_main) == (0, 1, True)
        assert ranks.sum({"a": 2.0}) == ranks.mean({"a": 2.0}) == {"a": 2.0}
        assert ranks.maximum({"a": 2.0}) == {"a": 2.0}
        assert ranks.all_gather("x") == ["x"]
        assert ranks.broadcast("x") == "x"
        assert ranks.scatter(["x"]) == "x"


def test_without_torchrun_variables_a_run_is_one_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert DistributedContext.initialize().world_size == 1


def test_incomplete_torchrun_variables_are_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match=r"RANK is '' .* start with torchrun"):
        DistributedContext.initialize()


def test_parameter_without_gradient_gets_zeros():
    unused = torch.nn.Parameter(torch.ones(2))
    DistributedContext(device=torch.device("cpu")).all_reduce_gradients([unused])
    assert unused.grad is not None
    assert unused.grad.tolist() == [0, 0]


@pytest.mark.slow
def test_collectives_of_two_processes(two_ranks: tuple[dict[str, Any], Path]):
    assert two_ranks[0]["collectives"] == {
        "sum": {"a": 3.0, "b": 20.0},
        "mean": {"a": 1.5, "b": 10.0},
        "maximum": {"a": 2.0, "b": 10.0},
        "gather": ["from 0", "from 1"],
        "broadcast": "from 0",
        "scatter": ["for 0", "for 1"],
    }


@pytest.mark.slow
@pytest.mark.parametrize("case", list(rank_work.CASES))
def test_two_ranks_make_the_same_updates_as_one(two_ranks: tuple[dict[str, Any], Path], case: str):
    results, folder = two_ranks
    expected, numbers = rank_work.run_case(case, DistributedContext(device=torch.device("cpu")))
    weights = load_file(folder / f"{case}.safetensors")
    assert weights.keys() == expected.keys()
    max_difference = max(
        float((weights[name].float() - expected[name].float()).abs().max()) for name in weights
    )
    assert max_difference < (2e-3 if "bfloat16" in case else 2e-6)
    assert results[case]["resumes_exactly"] == numbers["resumes_exactly"] == 1
    rel, absolute = (5e-2, 2e-4) if "bfloat16" in case else (1e-4, 1e-6)
    for name in ("loss", "kl", "entropy", "ratio_max", "grad_norm", "tokens"):
        assert results[case][name] == pytest.approx(numbers[name], rel=rel, abs=absolute)


@pytest.mark.slow
def test_forwards_of_an_unsharded_policy_are_not_collectives(
    two_ranks: tuple[dict[str, Any], Path],
):
    assert two_ranks[0]["unsharded"]["difference"] < 1e-6


@pytest.mark.slow
def test_unsharded_policy_has_the_weights_loaded_last(two_ranks: tuple[dict[str, Any], Path]):
    assert two_ranks[0]["unsharded"]["stale"] == 0


@pytest.mark.slow
def test_restarted_attempt_does_not_wait_for_the_previous_one(tmp_path: Path):
    results = torchrun("restart", tmp_path, "--max-restarts=1", "--monitor-interval=0.2")
    assert results == {"sum": {"a": 2.0}}


@pytest.mark.slow
def test_process_group_is_destroyed_at_exit(tmp_path: Path):
    script = tmp_path / "joins.py"
    script.write_text(
        "import atexit, pathlib, sys\n"
        "import torch, torch.distributed as dist\n"
        "from grpo_cl.policy.model.distributed import DistributedContext\n"
        "note = pathlib.Path(sys.argv[1])\n"
        "atexit.register(lambda: note.write_text(str(dist.is_initialized())))\n"
        "ranks = DistributedContext.initialize(device=torch.device('cpu'))\n"
        "assert dist.is_initialized()\n"
    )
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    environment = {**os.environ, **variables, "MASTER_PORT": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(tmp_path / "note")]
    subprocess.run(command, env=environment, check=True, timeout=120)
    assert (tmp_path / "note").read_text() == "False"
