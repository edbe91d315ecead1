"""What the processes of tests/test_sharding.py do; started by torchrun with a policy and a folder.

Each algorithm learns in a policy that every process has whole, and in one that is spread over them.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from grpo_cl.algorithms import find_algorithm
from grpo_cl.policy.ranks import Ranks
from grpo_cl.policy.runtime import PolicyRuntime
from grpo_cl.trainer import GRPOTrainer
from grpo_cl.types import TrajectoryGroup
from small_runs import rarities, small_config

ALGORITHMS: dict[str, dict[str, Any]] = {
    "clear": {},
    "der": {},
    "domain_lora": {"lora": {"r": 4}},
    "kl_old": {},
    "merge": {},
}
"""One of each kind: passes over stored tokens and logits, adapters, an older policy, whole copies.
Anchors and projections are compared in tests/anchor_work.py."""


def with_rewards(group: TrajectoryGroup) -> TrajectoryGroup:
    """One success per group, and something to learn from."""
    rewards = [
        reward.model_copy(update={"value": float(number == 0)})
        for number, reward in enumerate(group.rewards)
    ]
    changes = {"rewards": tuple(rewards), "training_rewards": rarities(group)}
    return group.model_copy(update=changes)


def rewarded(name: str) -> Any:
    """The algorithm, in a world where a random policy has rewards."""
    kind = find_algorithm(name)

    class Rewarded(kind):
        def augment_rollouts(
            self, groups: Sequence[TrajectoryGroup], current_domain: str
        ) -> Sequence[TrajectoryGroup]:
            return super().augment_rollouts([with_rewards(g) for g in groups], current_domain)

    return Rewarded()


def learned(policy: Path, log_dir: Path, ranks: Ranks, **changes: Any) -> dict[str, torch.Tensor]:
    """The weights after a run."""
    config = small_config(policy, log_dir, num_steps_per_task=1, **changes)
    runtime = PolicyRuntime(config, ranks=ranks)
    trainer = GRPOTrainer(config, policy=runtime)
    trainer.cl_algorithm = rewarded(config.cl_algorithm)
    trainer.train()
    return runtime.model.state_dict()


def main() -> None:
    policy, folder = Path(sys.argv[1]), Path(sys.argv[2])
    furthest: dict[str, float] = {}
    with Ranks.join(device=torch.device("cpu")) as ranks:
        for name, settings in ALGORITHMS.items():
            whole, sharded = (
                learned(
                    policy,
                    folder / f"{name}_{sharding}",
                    ranks,
                    cl_algorithm=name,
                    sharding=sharding,
                    **settings,
                )
                for sharding in ("none", "fsdp")
            )
            assert whole.keys() == sharded.keys()
            furthest[name] = max(float((whole[n] - sharded[n]).abs().max()) for n in whole)
        if ranks.is_main:
            (folder / "results.json").write_text(json.dumps(furthest))


if __name__ == "__main__":
    main()
