"""Signs in a run's numbers that its policy cannot learn or was not measured, as sentences."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from grpo_cl.metrics.floors import floor_remarks
from grpo_cl.metrics.names import numbers
from grpo_cl.metrics.rmatrix import BASE, Cell, RMatrix

FLAT_STEPS = 5
"""Steps in a row without a gradient after which a run warns."""
CONTEXT_SHARE = 0.5
"""Fraction of an evaluation's episodes that end with a full context, from which a run warns."""


def evaluation_problem(domain: str, cell: Cell) -> str | None:
    """Why the score of an evaluation says little about the policy; None if there is no sign."""
    total = cell.num_episodes
    exceeded = cell.context_window_exceeded or 0
    if exceeded >= CONTEXT_SHARE * total > 0:
        return (
            f"{domain}: {exceeded} of {total} episodes ended with a full context "
            "(context_window_exceeded); raise sampling.max_context, or lower max_new_tokens or "
            "rollout.max_turns"
        )
    if cell.no_tool_call == total > 0:
        return (
            f"{domain}: no reply in {total} episodes was a tool call; check that sampling.dialect "
            "is the model's format of tool calls and rollout.prompt the kind of prompt it was "
            "trained on"
        )
    return None


def training_problem(domain: str, records: Sequence[Mapping[str, Any]]) -> str | None:
    """A sentence at the step that completes ``FLAT_STEPS`` steps in a row without a gradient."""
    if _num_flat_at_end(records) != FLAT_STEPS:
        return None
    reward = numbers(records[-1]).get("reward_mean", 0.0)
    return (
        f"{domain}: in the last {FLAT_STEPS} steps all groups had equal rewards (mean reward "
        f"{reward:.3f}), so there was no gradient; {_way_out(reward)}"
    )


def remarks(matrix: RMatrix, metrics: Mapping[str, Sequence[Any]]) -> list[str]:
    """The signs in all evaluations and training steps of a run, and gains on floor tasks only."""
    found = [
        f"Evaluation {'before training' if row.after == BASE else f'after {row.after}'}, {problem}."
        for row in matrix.rows
        for domain, cell in row.cells.items()
        if (problem := evaluation_problem(domain, cell))
    ]
    for stage, domain in enumerate(matrix.domains):
        records = metrics.get(f"task_{stage}/train", ())
        longest = max(
            (len(list(run)) for flat, run in groupby(records, is_flat) if flat), default=0
        )
        if longest >= FLAT_STEPS:
            found.append(
                f"Training on {domain}: in {longest} of {len(records)} steps, one after another, "
                "all groups had equal rewards, so there was no gradient."
            )
    return found + floor_remarks(matrix)


def _num_flat_at_end(records: Sequence[Mapping[str, Any]]) -> int:
    runs = [(flat, len(list(run))) for flat, run in groupby(records, is_flat)]
    return runs[-1][1] if runs and runs[-1][0] else 0


def is_flat(record: Mapping[str, Any]) -> bool:
    """Whether all groups of a training step had equal rewards, so that it had no gradient."""
    groups = record.get("groups")
    return bool(groups) and record.get("zero_variance_groups") == groups


def _way_out(reward: float) -> str:
    if reward > 0:
        return "if all tasks are solved, train on harder ones"
    return (
        "train on easier tasks, set reward.shaping, or raise temperature or num_samples_per_prompt"
    )
