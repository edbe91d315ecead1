"""The script of the two-rank test in test_policy_drift.py; torchrun passes a file for results."""

import sys
from pathlib import Path

import torch

from grpo_cl.envs.toy.domain import OPTIONS, signal_names
from grpo_cl.metrics.rmatrix import Drift
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.runtime import PolicyRuntime
from grpo_cl.types import TokenTrace
from tabular_weights import FIRST, NAME, SECOND
from toy_runs import toy_config


def measure_drift(ranks: DistributedContext) -> Drift:
    """The drift of the second of two policies, on an odd index of episodes."""
    config = toy_config(Path("unused"), evaluation={"trials": 2, "drift": True})
    policy = PolicyRuntime(config, ranks=ranks)
    traces = [
        TokenTrace(
            ids=(len(OPTIONS) + index, index % len(OPTIONS)),
            mask=(False, True),
            logprobs=(0.0,),
            turns=((1, 2),),
        )
        for index in range(len(signal_names()) - 1)
    ]
    for weight in (FIRST, SECOND):
        policy.learner.load_weights({NAME: weight})
        drift = policy.drift("toy_left", traces)
        policy.remember("toy_left")
    assert drift is not None
    return drift


def main() -> None:
    with DistributedContext.initialize(device=torch.device("cpu")) as ranks:
        drift = measure_drift(ranks)
        if ranks.is_main:
            Path(sys.argv[1]).write_text(drift.model_dump_json())


if __name__ == "__main__":
    main()
