"""What the processes of tests/test_anchors.py do; started by torchrun with a folder for results."""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from grpo_cl.policy.continual.anchors import QuadraticAnchor
from grpo_cl.policy.continual.fisher import fisher, normalised, sensitivity
from grpo_cl.policy.continual.projection import UpdateProjection
from grpo_cl.policy.continual.tensors import Tensors, grouped, ungrouped
from grpo_cl.policy.learner import Learner
from grpo_cl.policy.ranks import Ranks
from grpo_cl.policy.reference import whole
from tiny_learners import random_batch, random_traces, settings, tiny_policy

CASES = ("plain", "sharded")


def find(case: str, ranks: Ranks) -> Tensors:
    """Importances, and the weights after updates that anchors and a memory have changed."""
    config = settings(learning_rate=5e-5, optimizer={"micro_batch_tokens": 60})
    learner = Learner(tiny_policy(config), config, ranks, shard=case == "sharded")
    importance = fisher(learner, random_traces(5))
    found: dict[str, dict[str, Tensor]] = {
        "fisher": importance,
        "sensitivity": sensitivity(learner, random_traces(5)),
    }
    anchor = QuadraticAnchor(learner, strength=0.5, form="proximal", schedule="merged")
    penalty = QuadraticAnchor(learner, strength=0.5, form="loss", schedule="separate")
    projection = UpdateProjection(learner, strength=1.0)
    for held in (anchor, penalty):
        held.hold(normalised(importance))
        kept = {name: whole(given) for name, given in ungrouped(held.groups()).items()}
        held.load(grouped(kept, like=learner.weights()))
    for seed in (1, 2):
        projection.keep()
        learner.update(*random_batch(5, seed=seed), transform=penalty.oppose)
        learner.update(*random_batch(5, seed=seed), transform=anchor.oppose)
        anchor.settle()
        penalty.settle()
        corrected = projection.correct(random_traces(3, seed=seed))
    numbers = {**anchor.numbers, "loss": penalty.numbers["cl/penalty"], "rise": corrected.rise}
    found["numbers"] = {name: torch.tensor(value) for name, value in numbers.items()}
    found["weights"] = learner.weights()
    return {name: whole(tensor).clone() for name, tensor in ungrouped(found).items()}


def main() -> None:
    folder = Path(sys.argv[1])
    with Ranks.join(device=torch.device("cpu")) as ranks:
        for case in CASES:
            found = find(case, ranks)
            if ranks.is_main:
                save_file(found, folder / f"{case}.safetensors")


if __name__ == "__main__":
    main()
