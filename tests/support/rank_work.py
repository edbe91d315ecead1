"""The processes of tests/policy/model/test_distributed.py; torchrun starts them with a folder."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from grpo_cl.policy.kernels.fused_blocks import fuse_blocks, fused_blocks_are_exact
from grpo_cl.policy.learner.fsdp import unsharded
from grpo_cl.policy.learner.learner import Learner, supervised_update
from grpo_cl.policy.learner.optimizer import LearnerState
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.model.logprobs import causal_model
from grpo_cl.policy.model.policy_model import PolicyModel
from grpo_cl.policy.model.weights import full_tensor
from tiny_learners import random_batch, random_traces, settings, tiny_policy

COMMON = {
    "kl_coef": 0.1,
    "learning_rate": 5e-5,
    "loss": {"updates_per_batch": 2},
    "optimizer": {"micro_batch_tokens": 60},
}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulated": {
        "num_samples_per_prompt": 2,
        "batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
    },
    "bfloat16": {"model_dtype": "bfloat16"},
    "sharded": {},
    "sharded_tied": {},
    "sharded_bfloat16": {"model_dtype": "bfloat16"},
    "sharded_lora": {"lora": {"r": 4}},
    "sharded_fused": {},
    "sharded_fused_lora": {"lora": {"r": 4}},
}
"""Fused cases are fused on two ranks, in Triton's interpreter, and not on one."""


def penalty(policy: PolicyModel) -> Tensor:
    total: Tensor | float = 0.0
    for _, weight in policy.trainable():
        total = total + 0.01 * weight.float().square().sum()
    assert isinstance(total, Tensor)
    return total


def make_learner(case: str, ranks: DistributedContext) -> Learner:
    config = settings(**{**COMMON, **CASES[case]})
    policy = tiny_policy(config, tied="tied" in case)
    if "fused" in case and ranks.world_size > 1:
        causal = causal_model(policy.module)
        fuse_blocks(causal)
        assert fused_blocks_are_exact(causal)
    return Learner(policy, config, ranks, shard="sharded" in case)


def learn(learner: Learner) -> dict[str, float]:
    """Updates on many, one and no samples, with a penalty, and a supervised one."""
    learner.update(*random_batch(9))
    learner.update(*random_batch(1, seed=1))
    learner.update([], [])
    supervised_update(learner, random_traces(5, seed=2))
    return learner.update(*random_batch(4, seed=3), auxiliary=penalty)


def resumed(case: str, learner: Learner, ranks: DistributedContext) -> Learner:
    """Another learner, restored from the state of this one."""
    copy = make_learner(case, ranks)
    copy.policy.load_state_dict(learner.policy.state_dict())
    state = learner.state_dict()
    copy.load_state_dict(LearnerState(state.tensors, json.loads(json.dumps(state.numbers))))
    return copy


def run_case(case: str, ranks: DistributedContext) -> tuple[dict[str, Tensor], dict[str, float]]:
    learner = make_learner(case, ranks)
    numbers = learn(learner)
    other = resumed(case, learner, ranks)
    for each in (learner, other):
        each.update(*random_batch(6, seed=4))
    same = learner.policy.fingerprint() == other.policy.fingerprint()
    weights = {
        name: full_tensor(weight.detach()).clone() for name, weight in learner.policy.trainable()
    }
    return weights, {**numbers, "resumes_exactly": float(same)}


def unsharded_differences(ranks: DistributedContext) -> dict[str, float]:
    """Forwards of an unsharded policy, a different number on each rank, then an update."""
    learner = make_learner("sharded", ranks)
    ids = torch.tensor([[1, 2, 3, 4]])
    together = learner.policy.module(ids).logits
    with torch.no_grad(), unsharded(learner.policy.module):
        alone = [learner.policy.module(ids).logits for _ in range(1 + ranks.rank)]
    learner.update(*random_batch(3))
    return {
        "difference": float((alone[-1] - together.detach()).abs().max()),
        "stale": stale_difference(learner, ids),
    }


def stale_difference(learner: Learner, ids: Tensor) -> float:
    """Difference of logits after loading earlier weights behind a forward without gradients."""
    module = learner.policy.module
    earlier = learner.weights()
    with torch.no_grad(), unsharded(module):
        expected = module(ids).logits
    learner.update(*random_batch(3, seed=1))
    with torch.no_grad():
        module(ids)
        learner.load_weights(earlier)
        with unsharded(module):
            logits = module(ids).logits
    return float((logits - expected).abs().max())


def collectives(ranks: DistributedContext) -> dict[str, Any]:
    numbers = {"a": 1.0 + ranks.rank, "b": 10.0}
    return {
        "sum": ranks.sum(numbers),
        "mean": ranks.mean(numbers),
        "maximum": ranks.maximum(numbers),
        "gather": ranks.all_gather(f"from {ranks.rank}"),
        "broadcast": ranks.broadcast(f"from {ranks.rank}"),
        "scatter": ranks.all_gather(ranks.scatter(["for 0", "for 1"])),
    }


def fail_once() -> None:
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    mode, folder = sys.argv[1], Path(sys.argv[2])
    with DistributedContext.initialize(device=torch.device("cpu")) as ranks:
        if mode == "restart":
            fail_once()
            results: dict[str, Any] = {"sum": ranks.sum({"a": 1.0})}
        else:
            results = {"collectives": collectives(ranks), "unsharded": unsharded_differences(ranks)}
            for case in CASES:
                weights, results[case] = run_case(case, ranks)
                if ranks.is_main:
                    save_file(weights, folder / f"{case}.safetensors")
        if ranks.is_main:
            (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
