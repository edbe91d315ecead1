"""The script of the two-rank test in test_weights.py, started by torchrun with a result folder."""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from grpo_cl.policy.continual.passes import trace_logprobs
from grpo_cl.policy.learner.learner import Learner
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.model.weights import ModuleWeights, WeightSnapshot, snapshot
from tiny_learners import random_batch, random_traces, settings, tiny_policy

CASES = ("unsharded", "sharded")


def compute(case: str, ranks: DistributedContext) -> dict[str, Tensor]:
    """Weights and log-probs after updates, each followed by a pass with the initial weights."""
    config = settings(learning_rate=1e-3, optimizer={"micro_batch_tokens": 60})
    learner = Learner(tiny_policy(config), config, ranks, shard=case == "sharded")
    store, traces = ModuleWeights(learner.policy.module), random_traces(5)
    initial = WeightSnapshot.take(store)
    results: dict[str, Tensor] = {}
    for seed in range(3):
        learner.update(*random_batch(5, seed=seed))
        with initial.swapped_into(store):
            old = trace_logprobs(learner, traces)
        new = trace_logprobs(learner, traces)
        for name, rows in (("old", old), ("new", new)):
            results[f"{name}/{seed}"] = torch.tensor([value for row in rows for value in row])
    return results | snapshot(learner.policy.module)


def main() -> None:
    folder = Path(sys.argv[1])
    with DistributedContext.initialize(device=torch.device("cpu")) as ranks:
        for case in CASES:
            results = compute(case, ranks)
            if ranks.is_main:
                save_file(results, folder / f"{case}.safetensors")


if __name__ == "__main__":
    main()
