"""The script of the two-rank tests in test_anchors.py, started by torchrun with a result folder."""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from grpo_cl.policy.continual.anchors import QuadraticAnchor
from grpo_cl.policy.continual.importance import fisher_diagonal, normalize_importance, sensitivity
from grpo_cl.policy.continual.projection import UpdateProjection
from grpo_cl.policy.continual.tensors import Tensors, flatten_groups, group_tensors
from grpo_cl.policy.learner.learner import Learner
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.model.weights import full_tensor
from tiny_learners import random_batch, random_traces, settings, tiny_policy

CASES = ("plain", "sharded")


def compute(case: str, ranks: DistributedContext) -> Tensors:
    """Importances, and the weights after updates with anchors and projections."""
    config = settings(learning_rate=5e-5, optimizer={"micro_batch_tokens": 60})
    learner = Learner(tiny_policy(config), config, ranks, shard=case == "sharded")
    importance = fisher_diagonal(learner, random_traces(5))
    results: dict[str, dict[str, Tensor]] = {
        "fisher": importance,
        "sensitivity": sensitivity(learner, random_traces(5)),
    }
    anchor = QuadraticAnchor(learner, strength=0.5, form="proximal", schedule="merged")
    penalty = QuadraticAnchor(learner, strength=0.5, form="loss", schedule="separate")
    projection = UpdateProjection(learner, strength=1.0)
    for anchored in (anchor, penalty):
        anchored.add_anchor(normalize_importance(importance))
        saved = {
            name: full_tensor(tensor)
            for name, tensor in flatten_groups(anchored.tensor_groups()).items()
        }
        anchored.load_tensor_groups(group_tensors(saved, like=learner.weights()))
    for seed in (1, 2):
        projection.before_update()
        learner.update(*random_batch(5, seed=seed), transform=penalty.add_penalty_gradient)
        learner.update(*random_batch(5, seed=seed), transform=anchor.add_penalty_gradient)
        anchor.apply_proximal_step()
        penalty.apply_proximal_step()
        projected = projection.project_update(random_traces(3, seed=seed))
    metrics = {
        **anchor.metrics,
        "loss": penalty.metrics["cl/penalty"],
        "loss_increase": projected.loss_increase,
    }
    results["metrics"] = {name: torch.tensor(value) for name, value in metrics.items()}
    results["weights"] = learner.weights()
    return {name: full_tensor(tensor).clone() for name, tensor in flatten_groups(results).items()}


def main() -> None:
    folder = Path(sys.argv[1])
    with DistributedContext.initialize(device=torch.device("cpu")) as ranks:
        for case in CASES:
            results = compute(case, ranks)
            if ranks.is_main:
                save_file(results, folder / f"{case}.safetensors")


if __name__ == "__main__":
    main()
