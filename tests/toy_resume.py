"""Toy runs that end too early and are resumed, and how two runs are compared."""

from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from grpo_cl.policy.runtime import PolicyRuntime
from grpo_cl.rundir import RunDir
from grpo_cl.trainer import GRPOTrainer
from toy_runs import toy_config, toy_run

SAVING = {"trackers": (), "save_interval": 1}


class EndsEarly(GRPOTrainer):
    """Is gone before it makes a certain step."""

    last_step = 0

    @override
    def train_step(self, domain: str) -> dict[str, float]:
        if self._global_step == self.last_step:
            raise KeyboardInterrupt
        return super().train_step(domain)


def runtime(trainer: GRPOTrainer) -> PolicyRuntime:
    assert isinstance(trainer.policy, PolicyRuntime)
    return trainer.policy


def fingerprint(trainer: GRPOTrainer) -> str:
    """Of the weights that learn."""
    return runtime(trainer).model.fingerprint()


def resumed_as_if_never_ended(folder: Path, *, step: int, **changes: Any) -> bool:
    """Whether ending before ``step`` and resuming leaves the numbers and weights of one go."""
    changes = {"num_steps_per_task": 3, "evaluation": {"trials": 1}, **changes}
    whole = toy_run(folder / "whole", logging=SAVING, **changes)
    config = toy_config(folder / "parts", logging=SAVING, **changes)
    first = EndsEarly(config)
    first.last_step = step
    with pytest.raises(KeyboardInterrupt):
        first.train()
    second = GRPOTrainer(config.model_copy(update={"resume_from": config.log_dir}))
    second.train()
    files = [RunDir(folder / name) for name in ("whole", "parts")]
    numbers, others = (run.metrics_journal.read_bytes() for run in files)
    return numbers == others and fingerprint(whole) == fingerprint(second)
