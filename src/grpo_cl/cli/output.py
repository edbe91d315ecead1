"""Printed output of the commands: tables, transcripts, and text that is safe for a terminal."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_cl.metrics.floors import FLOORS, domain_floors
from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.types import Message


def is_main_process() -> bool:
    """Whether this process prints and writes files; of those of ``torchrun``, one does."""
    return int(os.environ.get("RANK", "0")) == 0


def printable(text: str) -> str:
    """Text without the control characters that could move a terminal's cursor."""
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)


def transcript(message: Message) -> str:
    """One message as plain text."""
    lines = [f"{message.role}: {message.content}"] if message.content else []
    for call in message.tool_calls or ():
        arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
        lines.append(f"{message.role} calls {call.name}({arguments})")
    return printable("\n".join(lines))


def table(rows: Sequence[Sequence[object]]) -> str:
    """Rows with aligned columns; the first row is the header."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in texts) for i in range(len(texts[0]))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in texts]
    return "\n".join(line.rstrip() for line in lines)


def matrix_table(matrix: RMatrix) -> str:
    """The R-matrix as a table, with the mean of each row."""
    rows: list[list[object]] = [["after", *matrix.domains, "mean"]]
    for row in matrix.rows:
        cells = [matrix.cell(row.after, domain) for domain in matrix.domains]
        means = [cell.mean for cell in cells if cell]
        texts = [format_score(cell.mean) if cell else "" for cell in cells]
        rows.append([row.after, *texts, format_score(sum(means) / len(means))])
    return table(rows)


def floor_table(matrix: RMatrix) -> str:
    """The floors of each domain, and its pass rates on the tasks that no floor policy solves."""
    columns = ("tasks left", "untrained", "just learned", "at the end")
    rows: list[list[object]] = [["floors", *FLOORS.values(), *columns]]
    for row in domain_floors(matrix):
        left = f"{row.num_tasks - row.num_floor_tasks} of {row.num_tasks}"
        floors = map(format_score, row.floors.values())
        rates = map(format_score, (row.untrained, row.learned, row.last))
        rows.append([row.domain, *floors, left, *rates])
    return table(rows)


def score_line(scores: Mapping[str, Any]) -> str:
    """The continual-learning scores on one line."""
    names = ("average_performance", "backward_transfer", "forgetting", "forward_transfer")
    return ", ".join(f"{name} {format_score(scores.get(name))}" for name in names)


def format_score(value: float | None) -> str:
    """A score with three digits, or a dash for None."""
    return "–" if value is None else f"{value:.3f}"
