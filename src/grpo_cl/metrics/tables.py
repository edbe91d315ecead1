"""Tables for experiment trackers: the R-matrix, and sample episodes."""

from collections.abc import Sequence
from typing import NamedTuple

from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.rewards import ScoredTrajectory
from grpo_cl.storage.encoding import encode
from grpo_cl.types import Message

MAX_CHARACTERS = 20_000
"""Of the text of one episode."""

Value = str | float | None


class Table(NamedTuple):
    """Column names, and rows of as many values."""

    columns: tuple[str, ...]
    rows: list[tuple[Value, ...]]


EPISODE_COLUMNS = ("after", "domain", "task", "reward", "ended", "episode")


def matrix_table(matrix: RMatrix) -> Table:
    """Mean rewards: a row per stage, a column per domain; cells not evaluated are None."""
    rows: list[tuple[Value, ...]] = [
        (after, *scores)
        for after, scores in zip(matrix.evaluated_stages, matrix.scores(), strict=True)
    ]
    return Table(("after", *matrix.domains), rows)


def sample_episodes(after: str, episodes: Sequence[ScoredTrajectory]) -> list[tuple[Value, ...]]:
    """Rows of ``EPISODE_COLUMNS``: the best and the worst episode of one evaluation."""
    ranked = sorted(range(len(episodes)), key=lambda index: -episodes[index].reward.value)
    chosen = dict.fromkeys(ranked[:1] + ranked[-1:])
    return [_row(after, episodes[index]) for index in chosen]


def markdown(table: Table) -> str:
    """The table in GitHub's Markdown."""
    lines = [table.columns, tuple("---" for _ in table.columns), *table.rows]
    return "\n".join(f"| {' | '.join(map(_markdown_cell, line))} |" for line in lines)


def _row(after: str, episode: ScoredTrajectory) -> tuple[Value, ...]:
    trajectory, reward = episode
    text = "\n\n".join(_spoken(message) for message in trajectory.messages)
    place = (after, trajectory.task.domain, trajectory.task.id)
    return (*place, reward.value, trajectory.termination.value, text[:MAX_CHARACTERS])


def _spoken(message: Message) -> str:
    calls = [f"{call.name}({encode(call.arguments)})" for call in message.tool_calls or ()]
    return f"{message.role}: {' '.join([message.content or '', *calls]).strip()}"


def _markdown_cell(value: Value) -> str:
    if value is None:
        return "–"
    if not isinstance(value, str):
        return f"{value:.3f}"
    return value.replace("|", "\\|").replace("\n", "<br>")
