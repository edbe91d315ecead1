"""Settings of each algorithm for the contract of tests/algorithms/test_algorithms.py.

``python algorithm_cases.py FOLDER`` trains all of them, as one of the processes of torchrun.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from grpo_cl.algorithms import ALGORITHMS
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.runtime import PolicyRuntime
from grpo_cl.runs.layout import RunDir
from grpo_cl.trainer import GRPOTrainer
from toy_runs import LORA, toy_config

SHORT = {
    "num_samples_per_prompt": 4,
    "num_steps_per_task": 4,
    "replay_buffer_size": 32,
    "evaluation": {"trials": 2},
}
"""Settings of a short run, too short to show how well an algorithm works."""

IN_ADAPTERS = frozenset({"domain_lora", "olora"})
"""Algorithms that refuse a run without LoRA; they are compared with plain training in LoRA."""

ZERO: dict[str, dict[str, Any]] = {
    "agem": {"cl_options": {"strength": 0}},
    "clear": {"cl_options": {"share": 0}},
    "der": {"cl_options": {"alpha": 0}},
    "ewc": {"cl_options": {"strength": 0}},
    "kl_old": {"cl_options": {"strength": 0}},
    "l2_init": {"cl_options": {"strength": 0}},
    "l2_sp": {"cl_options": {"strength": 0}},
    "mas": {"cl_options": {"strength": 0}},
    "merge": {"cl_options": {"alpha": 1}},
    "rapo": {"cl_options": {"strength": 0}},
    "replay": {"replay_ratio": 0.0},
    "sequential": {},
    "si": {"cl_options": {"strength": 0}},
    "trajectory_replay": {"cl_options": {"share": 0}},
}
"""Settings with which an algorithm equals plain training."""

WITHOUT_ZERO = {
    "domain_lora": "every domain has an adapter of its own by definition",
    "joint": "it trains all domains at once",
    "olora": "without a penalty the adapters are still stacked",
    "single": "every domain starts from the initial policy by definition",
}

ACTS_AT_ONCE = {
    "joint": "plays all domains from the first step",
    "l2_init": "penalizes the distance from the initial weights from the first step",
    "merge": "merges the policy of the first domain with the initial one",
}
"""Algorithms whose first stage is not that of plain training, and why."""

FORGETS_LESS: dict[str, dict[str, Any]] = {
    "agem": {},
    "clear": {"cl_options": {"cloning": 0.1}},
    "der": {},
    "ewc": {},
    "kl_old": {},
    "l2_sp": {"cl_options": {"strength": 0.1}},
    "mas": {},
    "merge": {},
    "rapo": {"cl_options": {"strength": 1.0, "alpha": 3.0}},
    "replay": {"replay_ratio": 0.5},
    "si": {},
    "trajectory_replay": {"cl_options": {"share": 0.5, "max_drift": 5.0}},
}
"""Settings with which an algorithm forgets less of the first domain than plain training."""

FORGETS_NOTHING = frozenset({"domain_lora", "single"})

UNPROTECTED = {
    "joint": "has no earlier domain",
    "l2_init": "preserves plasticity, not earlier domains",
    "olora": "separates adapters, all of which read the shared feature here",
    "sequential": "is the baseline",
}


def settings_of(name: str) -> dict[str, Any]:
    """The settings that a run of an algorithm needs."""
    return {"cl_algorithm": name, **({"lora": LORA} if name in IN_ADAPTERS else {})}


def weights_of(trainer: GRPOTrainer) -> dict[str, Tensor]:
    """Copies of the trained weights."""
    assert isinstance(trainer.policy, PolicyRuntime)
    return trainer.policy.learner.weights()


def steps_of(log_dir: Path, stage: int) -> list[dict[str, Any]]:
    """The logged metrics of each step of a stage."""
    return json.loads(RunDir(log_dir).metrics.read_text())[f"task_{stage}/train"]


def main() -> None:
    folder = Path(sys.argv[1])
    with DistributedContext.initialize(device=torch.device("cpu")) as ranks:
        for name in ALGORITHMS:
            whole = toy_config(folder / name, **SHORT, **settings_of(name))
            share = whole.batch_size_per_gpu // ranks.world_size
            config = whole.model_copy(update={"batch_size_per_gpu": share})
            trainer = GRPOTrainer(config, policy=PolicyRuntime(config, ranks=ranks))
            trainer.train()
            if ranks.is_main:
                save_file(weights_of(trainer), folder / f"{name}.safetensors")


if __name__ == "__main__":
    main()
