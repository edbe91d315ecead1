from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import snapshot_work
from grpo_cl.policy.learner.learner import Learner
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.model.weights import ModuleWeights, WeightSnapshot, WeightStore
from tiny_learners import random_batch, settings, tiny_policy
from two_processes import run_two_processes

SINGLE_PROCESS = DistributedContext(device=torch.device("cpu"))


def make_learner() -> Learner:
    config = settings(model_dtype="bfloat16", learning_rate=1e-3)
    return Learner(tiny_policy(config), config, SINGLE_PROCESS)


@pytest.mark.parametrize("has_current", [False, True])
@pytest.mark.parametrize("kind", ["module", "learner"])
def test_a_swapped_snapshot_replaces_the_weights_and_restores_them(kind: str, has_current: bool):
    learner = make_learner()
    store: WeightStore = ModuleWeights(learner.policy.module) if kind == "module" else learner
    initial, first = WeightSnapshot.take(store), learner.policy.fingerprint()
    learner.update(*random_batch(4))
    master, moved = learner.weights(), learner.policy.fingerprint()
    current = WeightSnapshot.take(store, on_cpu=True) if has_current else None
    with initial.swapped_into(store, current=current):
        assert learner.policy.fingerprint() == first != moved
    assert learner.policy.fingerprint() == moved
    assert all(torch.equal(master[name], weight) for name, weight in learner.weights().items())


def test_an_error_while_a_snapshot_is_swapped_in_restores_the_weights_too():
    learner = make_learner()
    initial = WeightSnapshot.take(learner)
    learner.update(*random_batch(4))
    moved = learner.policy.fingerprint()
    with pytest.raises(KeyError), initial.swapped_into(learner):
        raise KeyError
    assert learner.policy.fingerprint() == moved


@pytest.mark.slow
def test_swapping_snapshots_of_a_sharded_policy_gives_the_weights_of_an_unsharded_one(
    tmp_path: Path,
):
    run_two_processes("snapshot_work.py", tmp_path)
    expected = snapshot_work.compute("unsharded", SINGLE_PROCESS)
    for case in snapshot_work.CASES:
        results = load_file(tmp_path / f"{case}.safetensors")
        assert results.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(results[name], tensor, rtol=1e-3, atol=1e-5, msg=name)
