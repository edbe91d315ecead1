"""The processes of tests/policy/learner/test_fsdp.py: torchrun gives them policy, folder and cases.

Each case, an algorithm with options, trains an unsharded policy and a sharded one.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import torch

from algorithm_cases import settings_of
from grpo_cl.algorithms import ALGORITHMS, find_algorithm
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.runtime import PolicyRuntime
from grpo_cl.trainer import GRPOTrainer
from grpo_cl.types import TrajectoryGroup
from small_runs import small_config, token_id_rewards

UNSHARDED = {"olora": "stacks adapters, which FSDP does not support"}
"""Algorithms that refuse a sharded policy, and why."""

DRAWS = frozenset({"mode", "selection", "strategy"})
"""Options that choose tasks or episodes; no weight is read or written differently."""

NUMBERS: dict[str, list[dict[str, Any]]] = {
    "der": [{"beta": 0.5}],
    "trajectory_replay": [{"cloning": 0.1}],
}
"""Numbers that are 0 by default and add a term to the loss."""


STEPS = 2
"""Per stage: an error that the second step of a stage makes is seen."""


class Case(NamedTuple):
    """An algorithm with options that differ from its defaults."""

    algorithm: str
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return " ".join(
            [self.algorithm, *(f"{key}={value}" for key, value in self.options.items())]
        )


def cases() -> Iterator[Case]:
    """Each algorithm of the registry with its defaults and with each choice of each option."""
    for algorithm in sorted(ALGORITHMS.keys() - UNSHARDED.keys()):
        yield Case(algorithm, {})
        for options in (*other_choices(algorithm), *NUMBERS.get(algorithm, ())):
            yield Case(algorithm, options)


def other_choices(algorithm: str) -> Iterator[dict[str, Any]]:
    """Each value of an option with a fixed set of values that is not its default."""
    for name, field in find_algorithm(algorithm).options_type.model_fields.items():
        annotation = getattr(field.annotation, "__value__", field.annotation)
        values: Sequence[Any] = ()
        if annotation is bool:
            values = (False, True)
        elif get_origin(annotation) is Literal:
            values = get_args(annotation)
        if name not in DRAWS:
            yield from ({name: value} for value in values if value != field.default)


def with_rewards(group: TrajectoryGroup) -> TrajectoryGroup:
    """The group with one success and unequal training rewards."""
    rewards = [
        reward.model_copy(update={"value": float(number == 0)})
        for number, reward in enumerate(group.rewards)
    ]
    changes = {"rewards": tuple(rewards), "training_rewards": token_id_rewards(group)}
    return group.model_copy(update=changes)


def rewarded(case: Case) -> Any:
    """The algorithm, with rewards for a random policy."""
    kind = find_algorithm(case.algorithm)

    class Rewarded(kind):
        def augment_rollouts(
            self, groups: Sequence[TrajectoryGroup], current_domain: str
        ) -> Sequence[TrajectoryGroup]:
            return super().augment_rollouts([with_rewards(g) for g in groups], current_domain)

    return Rewarded(**case.options)


class Outcome(NamedTuple):
    """Weights before and after a run."""

    before: dict[str, torch.Tensor]
    after: dict[str, torch.Tensor]


def train(
    case: Case, policy: Path, log_dir: Path, ranks: DistributedContext, sharding: str
) -> Outcome:
    """A run of several steps per stage."""
    config = small_config(
        policy,
        log_dir,
        **settings_of(case.algorithm),
        cl_options=case.options,
        sharding=sharding,
        num_steps_per_task=STEPS,
        max_new_tokens=4,
        num_samples_per_prompt=2,
        batch_size_per_gpu=2,
        rollout={"user": "solo", "prompt": "compact", "max_turns": 1},
        evaluation={"max_tasks": 1},
        logging={"trackers": (), "save_interval": 100},
    )
    runtime = PolicyRuntime(config, ranks=ranks)
    before = {name: weight.clone() for name, weight in runtime.model.state_dict().items()}
    trainer = GRPOTrainer(config, policy=runtime)
    trainer.cl_algorithm = rewarded(case)
    trainer.train()
    return Outcome(before, runtime.model.state_dict())


def max_difference(weights: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> float:
    assert weights.keys() == others.keys()
    return max(float((weights[name] - others[name]).abs().max()) for name in weights)


def main() -> None:
    policy, folder, names = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    results: dict[str, dict[str, float]] = {}
    with DistributedContext.initialize(device=torch.device("cpu")) as ranks:
        for number, case in enumerate(case for case in cases() if case.name in names):
            unsharded, sharded = (
                train(case, policy, folder / f"{number}_{sharding}", ranks, sharding)
                for sharding in ("none", "fsdp")
            )
            results[case.name] = {
                "change": max_difference(unsharded.before, unsharded.after),
                "difference": max_difference(unsharded.after, sharded.after),
            }
        if ranks.is_main:
            (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
