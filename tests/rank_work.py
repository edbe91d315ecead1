"""What the processes of tests/test_ranks.py do; started by torchrun with a folder for results."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from grpo_cl.policy.layers import FusedLayers
from grpo_cl.policy.learner import Learner
from grpo_cl.policy.model import PolicyModel
from grpo_cl.policy.optimizer import LearnerState
from grpo_cl.policy.ranks import Ranks
from grpo_cl.policy.reference import whole
from grpo_cl.policy.scoring import causal_model
from grpo_cl.policy.sharding import gathered
from grpo_cl.policy.supervised import supervised_update
from tiny_learners import random_batch, random_traces, settings, tiny_policy

PLAIN = {
    "kl_coef": 0.1,
    "learning_rate": 5e-5,
    "loss": {"updates_per_batch": 2},
    "optimizer": {"micro_batch_tokens": 60},
}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "bfloat16": {"model_dtype": "bfloat16"},
    "sharded": {},
    "sharded_tied": {},
    "sharded_bfloat16": {"model_dtype": "bfloat16"},
    "sharded_lora": {"lora": {"r": 4}},
    "sharded_fused": {},
    "sharded_fused_lora": {"lora": {"r": 4}},
}
"""What is fused is so on two ranks, in Triton's interpreter, and not on one."""


def penalty(policy: PolicyModel) -> Tensor:
    total: Tensor | float = 0.0
    for _, weight in policy.trainable():
        total = total + 0.01 * weight.float().square().sum()
    assert isinstance(total, Tensor)
    return total


def make_learner(case: str, ranks: Ranks) -> Learner:
    config = settings(**{**PLAIN, **CASES[case]})
    policy = tiny_policy(config, tied="tied" in case)
    if "fused" in case and ranks.world_size > 1:
        assert FusedLayers(causal_model(policy.module)).are_exact()
    return Learner(policy, config, ranks, shard="sharded" in case)


def learn(learner: Learner) -> dict[str, float]:
    """Batches of many, of one and of no samples, with a penalty and by imitation."""
    learner.update(*random_batch(9))
    learner.update(*random_batch(1, seed=1))
    learner.update([], [])
    supervised_update(learner, random_traces(5, seed=2))
    return learner.update(*random_batch(4, seed=3), auxiliary=penalty)


def resumed(case: str, learner: Learner, ranks: Ranks) -> Learner:
    """Another learner that was given all that this one stores."""
    copy = make_learner(case, ranks)
    copy.policy.load_state_dict(learner.policy.state_dict())
    state = learner.state_dict()
    copy.load_state_dict(LearnerState(state.tensors, json.loads(json.dumps(state.numbers))))
    return copy


def run_case(case: str, ranks: Ranks) -> tuple[dict[str, Tensor], dict[str, float]]:
    learner = make_learner(case, ranks)
    numbers = learn(learner)
    other = resumed(case, learner, ranks)
    for each in (learner, other):
        each.update(*random_batch(6, seed=4))
    same = learner.policy.fingerprint() == other.policy.fingerprint()
    weights = {name: whole(given.detach()).clone() for name, given in learner.policy.trainable()}
    return weights, {**numbers, "resumes_exactly": float(same)}


def play_alone(ranks: Ranks) -> dict[str, float]:
    """Passes of a sharded policy that each rank makes on its own, and the policy learns after."""
    learner = make_learner("sharded", ranks)
    ids = torch.tensor([[1, 2, 3, 4]])
    together = learner.policy.module(ids).logits
    with torch.no_grad(), gathered(learner.policy.module):
        alone = [learner.policy.module(ids).logits for _ in range(1 + ranks.rank)]
    learner.update(*random_batch(3))
    return {
        "difference": float((alone[-1] - together.detach()).abs().max()),
        "stale": play_other_weights(learner, ids),
    }


def play_other_weights(learner: Learner, ids: Tensor) -> float:
    """How far a policy is from weights it was given after a pass without gradients."""
    module = learner.policy.module
    kept = learner.weights()
    with torch.no_grad(), gathered(module):
        expected = module(ids).logits
    learner.update(*random_batch(3, seed=1))
    with torch.no_grad():
        module(ids)
        learner.load_weights(kept)
        with gathered(module):
            found = module(ids).logits
    return float((found - expected).abs().max())


def exchange(ranks: Ranks) -> dict[str, Any]:
    numbers = {"a": 1.0 + ranks.rank, "b": 10.0}
    ranks.barrier()
    return {
        "sum": ranks.sum(numbers),
        "mean": ranks.mean(numbers),
        "maximum": ranks.maximum(numbers),
        "gather": ranks.gather(f"from {ranks.rank}"),
        "broadcast": ranks.broadcast(f"from {ranks.rank}"),
        "scatter": ranks.gather(ranks.scatter(["for 0", "for 1"])),
    }


def fail_once() -> None:
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    mode, folder = sys.argv[1], Path(sys.argv[2])
    with Ranks.join(device=torch.device("cpu")) as ranks:
        if mode == "restart":
            fail_once()
            results: dict[str, Any] = {"sum": ranks.sum({"a": 1.0})}
        else:
            results = {"exchange": exchange(ranks), "alone": play_alone(ranks)}
            for case in CASES:
                weights, results[case] = run_case(case, ranks)
                if ranks.is_main:
                    save_file(weights, folder / f"{case}.safetensors")
        if ranks.is_main:
            (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
