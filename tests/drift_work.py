"""What the processes of the two-rank test in tests/test_drift.py do; given a file for results."""

import sys
from pathlib import Path

import torch

from grpo_cl.domains.toy import OPTIONS, signal_names
from grpo_cl.metrics.rmatrix import Drift
from grpo_cl.policy.ranks import Ranks
from grpo_cl.policy.runtime import PolicyRuntime
from grpo_cl.types import TokenTrace
from tabular_weights import FIRST, NAME, SECOND
from toy_runs import toy_config


def measured(ranks: Ranks) -> Drift:
    """Of the second of two policies, on an odd number of episodes."""
    config = toy_config(Path("unused"), evaluation={"trials": 2, "drift": True})
    policy = PolicyRuntime(config, ranks=ranks)
    traces = [
        TokenTrace(
            ids=(len(OPTIONS) + number, number % len(OPTIONS)),
            mask=(False, True),
            logprobs=(0.0,),
            turns=((1, 2),),
        )
        for number in range(len(signal_names()) - 1)
    ]
    for weight in (FIRST, SECOND):
        policy.learner.load_weights({NAME: weight})
        found = policy.drift("toy_left", traces)
        policy.remember("toy_left")
    assert found is not None
    return found


def main() -> None:
    with Ranks.join(device=torch.device("cpu")) as ranks:
        found = measured(ranks)
        if ranks.is_main:
            Path(sys.argv[1]).write_text(found.model_dump_json())


if __name__ == "__main__":
    main()
