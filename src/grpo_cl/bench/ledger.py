"""What a run cost, summed from its own journals."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from grpo_cl.rundir import RunDir, read_journal
from grpo_cl.types import Record


class Ledger(Record):
    """What was played and learned from."""

    steps: int = 0
    """Policy updates."""
    rollouts: int = 0
    """Episodes, those that were thrown away too."""
    turns: int = 0
    """Replies of the agent."""
    environment_steps: int = 0
    """Tool calls that the environment answered."""
    generated_tokens: int = 0
    trained_tokens: int = 0
    """Tokens in a loss."""
    simulator_calls: int = 0
    """Replies of the simulated user."""

    def __add__(self, other: Self) -> Self:
        mine, others = self.model_dump(), other.model_dump()
        return self.model_validate({name: mine[name] + others[name] for name in mine})


class Costs(Record):
    """A run's ledger: learning, and measuring what was learned."""

    training: Ledger
    evaluation: Ledger

    def __add__(self, other: Self) -> Self:
        return self.model_validate(
            {
                "training": self.training + other.training,
                "evaluation": self.evaluation + other.evaluation,
            }
        )


NOTHING = Costs(training=Ledger(), evaluation=Ledger())

_NAMES = {
    "rollouts": "episodes",
    "turns": "turns",
    "environment_steps": "tool_calls",
    "generated_tokens": "generated_tokens",
    "trained_tokens": "tokens",
    "simulator_calls": "simulator_calls",
}


def costs(root: Path) -> Costs:
    """What the run in ``root`` cost; of a branch, what it would have cost alone."""
    metrics = RunDir(root).read_metrics()
    train = [r for name, records in metrics.items() if name.endswith("/train") for r in records]
    measured = [r for name, records in metrics.items() if name.endswith("/eval") for r in records]
    evaluation = _sum(measured).model_copy(update={"steps": 0})
    return Costs(training=_sum(train), evaluation=evaluation)


def seconds(root: Path) -> dict[str, float]:
    """Time spent in steps and in evaluations, repeated ones too."""
    spent = {"training": 0.0, "evaluation": 0.0}
    for record in read_journal(RunDir(root).times_journal):
        if record["kind"] == "train":
            spent["training"] += record.get("step_s", 0.0)
        else:
            spent["evaluation"] += record.get("play_s", 0.0)
    return spent


def _sum(records: Iterable[Mapping[str, Any]]) -> Ledger:
    found = list(records)
    counts = {
        field: round(sum(record.get(name) or 0 for record in found))
        for field, name in _NAMES.items()
    }
    return Ledger(steps=len(found), **counts)
