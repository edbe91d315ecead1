"""Toy runs that are interrupted and resumed, and the comparison of two runs."""

from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from grpo_cl.policy.runtime import PolicyRuntime
from grpo_cl.runs.layout import RunDir
from grpo_cl.trainer import GRPOTrainer
from toy_runs import toy_config, toy_run

SAVING = {"trackers": (), "save_interval": 1}


class InterruptedTrainer(GRPOTrainer):
    """Stops before the step ``last_step``."""

    last_step = 0

    @override
    def train_step(self, domain: str) -> dict[str, float]:
        if self.global_step == self.last_step:
            raise KeyboardInterrupt
        return super().train_step(domain)


def runtime(trainer: GRPOTrainer) -> PolicyRuntime:
    assert isinstance(trainer.policy, PolicyRuntime)
    return trainer.policy


def fingerprint(trainer: GRPOTrainer) -> str:
    """The fingerprint of the trained weights."""
    return runtime(trainer).model.fingerprint()


def resume_equals_uninterrupted(folder: Path, *, step: int, **changes: Any) -> bool:
    """Whether a run interrupted before ``step`` and resumed equals an uninterrupted one."""
    changes = {"num_steps_per_task": 3, "evaluation": {"trials": 1}, **changes}
    uninterrupted = toy_run(folder / "uninterrupted", logging=SAVING, **changes)
    config = toy_config(folder / "parts", logging=SAVING, **changes)
    first = InterruptedTrainer(config)
    first.last_step = step
    with pytest.raises(KeyboardInterrupt):
        first.train()
    second = GRPOTrainer(config.model_copy(update={"resume_from": config.log_dir}))
    second.train()
    files = [RunDir(folder / name) for name in ("uninterrupted", "parts")]
    first_journal, second_journal = (run.metrics_journal.read_bytes() for run in files)
    return first_journal == second_journal and fingerprint(uninterrupted) == fingerprint(second)
