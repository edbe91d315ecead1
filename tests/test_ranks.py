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
from grpo_cl.policy.ranks import Ranks

TESTS = Path(__file__).parent


def torchrun(mode: str, folder: Path, *options: str) -> dict[str, Any]:
    path = f"{TESTS}:{TESTS.parent / 'src'}"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    work = [*options, str(TESTS / "rank_work.py"), mode, str(folder)]
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *work], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "results.json").read_text())


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("two")
    return torchrun("learn", folder), folder


def test_a_process_alone_hears_itself():
    with Ranks(device=torch.device("cpu")) as ranks:
        assert (ranks.rank, ranks.world_size, ranks.is_main) == (0, 1, True)
        ranks.barrier()
        assert ranks.sum({"a": 2.0}) == ranks.mean({"a": 2.0}) == {"a": 2.0}
        assert ranks.maximum({"a": 2.0}) == {"a": 2.0}
        assert ranks.gather("x") == ["x"]
        assert ranks.broadcast("x") == "x"
        assert ranks.scatter(["x"]) == "x"


def test_without_the_variables_of_torchrun_a_run_is_one_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert Ranks.join().world_size == 1


def test_half_of_the_variables_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match=r"RANK is '' .* start with torchrun"):
        Ranks.join()


def test_a_parameter_without_gradient_gets_zeros():
    unused = torch.nn.Parameter(torch.ones(2))
    Ranks(device=torch.device("cpu")).all_reduce_gradients([unused])
    assert unused.grad is not None
    assert unused.grad.tolist() == [0, 0]


@pytest.mark.slow
def test_two_processes_hear_each_other(two: tuple[dict[str, Any], Path]):
    assert two[0]["exchange"] == {
        "sum": {"a": 3.0, "b": 20.0},
        "mean": {"a": 1.5, "b": 10.0},
        "maximum": {"a": 2.0, "b": 10.0},
        "gather": ["from 0", "from 1"],
        "broadcast": "from 0",
        "scatter": ["for 0", "for 1"],
    }


@pytest.mark.slow
@pytest.mark.parametrize("case", list(rank_work.CASES))
def test_two_ranks_learn_what_one_does(two: tuple[dict[str, Any], Path], case: str):
    results, folder = two
    expected, numbers = rank_work.run_case(case, Ranks(device=torch.device("cpu")))
    found = load_file(folder / f"{case}.safetensors")
    assert found.keys() == expected.keys()
    furthest = max(
        float((found[name].float() - expected[name].float()).abs().max()) for name in found
    )
    assert furthest < (2e-3 if "bfloat16" in case else 2e-6)
    assert results[case]["resumes_exactly"] == numbers["resumes_exactly"] == 1
    rel, absolute = (5e-2, 2e-4) if "bfloat16" in case else (1e-4, 1e-6)
    for name in ("loss", "kl", "entropy", "ratio_max", "grad_norm", "tokens"):
        assert results[case][name] == pytest.approx(numbers[name], rel=rel, abs=absolute)


@pytest.mark.slow
def test_a_gathered_policy_serves_each_rank_at_its_own_pace(two: tuple[dict[str, Any], Path]):
    assert two[0]["alone"]["difference"] < 1e-6


@pytest.mark.slow
def test_a_gathered_policy_has_the_weights_it_was_given_last(two: tuple[dict[str, Any], Path]):
    assert two[0]["alone"]["stale"] == 0


@pytest.mark.slow
def test_a_restarted_attempt_does_not_wait_for_the_dead_one(tmp_path: Path):
    results = torchrun("restart", tmp_path, "--max-restarts=1", "--monitor-interval=0.2")
    assert results == {"sum": {"a": 2.0}}


def test_a_process_that_closes_nothing_leaves_its_group_before_it_ends(tmp_path: Path):
    script = tmp_path / "joins.py"
    script.write_text(
        "import atexit, pathlib, sys\n"
        "import torch, torch.distributed as dist\n"
        "from grpo_cl.policy.ranks import Ranks\n"
        "note = pathlib.Path(sys.argv[1])\n"
        "atexit.register(lambda: note.write_text(str(dist.is_initialized())))\n"
        "ranks = Ranks.join(device=torch.device('cpu'))\n"
        "assert dist.is_initialized()\n"
    )
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    environment = {**os.environ, **alone, "MASTER_PORT": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(tmp_path / "note")]
    subprocess.run(command, env=environment, check=True, timeout=120)
    assert (tmp_path / "note").read_text() == "False"
