"""The cost of a run, summed from its journals."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from grpo_cl.runs.layout import RunDir
from grpo_cl.storage.journal import read_journal
from grpo_cl.types import Record


class CostCounts(Record):
    """Counts of one phase of a run."""

    steps: int = 0
    """Policy updates."""
    rollouts: int = 0
    """Episodes, including discarded ones."""
    turns: int = 0
    """Replies by the agent."""
    environment_steps: int = 0
    """Tool calls executed by the environment."""
    generated_tokens: int = 0
    trained_tokens: int = 0
    """Tokens that entered a loss."""
    simulator_calls: int = 0
    """Replies by the simulated user."""

    def __add__(self, other: Self) -> Self:
        left, right = self.model_dump(), other.model_dump()
        return self.model_validate({name: left[name] + right[name] for name in left})


class Costs(Record):
    """The counts of training and of evaluation."""

    training: CostCounts
    evaluation: CostCounts

    def __add__(self, other: Self) -> Self:
        return self.model_validate(
            {
                "training": self.training + other.training,
                "evaluation": self.evaluation + other.evaluation,
            }
        )


ZERO_COSTS = Costs(training=CostCounts(), evaluation=CostCounts())

_METRICS = {
    "rollouts": "episodes",
    "turns": "turns",
    "environment_steps": "tool_calls",
    "generated_tokens": "generated_tokens",
    "trained_tokens": "tokens",
    "simulator_calls": "simulator_calls",
}


def read_costs(root: Path) -> Costs:
    """The cost of the run in ``root``, including its shared first stage."""
    metrics = RunDir(root).read_metrics()
    train = [r for name, records in metrics.items() if name.endswith("/train") for r in records]
    evaluations = [
        r for name, records in metrics.items() if name.endswith("/eval") for r in records
    ]
    evaluation = _sum(evaluations).model_copy(update={"steps": 0})
    return Costs(training=_sum(train), evaluation=evaluation)


def read_seconds(root: Path) -> dict[str, float]:
    """The seconds of training steps and of evaluations, including repeated ones."""
    spent = {"training": 0.0, "evaluation": 0.0}
    for record in read_journal(RunDir(root).times_journal):
        if record["kind"] == "train":
            spent["training"] += record.get("step_s", 0.0)
        else:
            spent["evaluation"] += record.get("play_s", 0.0)
    return spent


def _sum(records: Iterable[Mapping[str, Any]]) -> CostCounts:
    rows = list(records)
    counts = {
        field: round(sum(record.get(name) or 0 for record in rows))
        for field, name in _METRICS.items()
    }
    return CostCounts(steps=len(rows), **counts)
