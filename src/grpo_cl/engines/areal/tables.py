"""The rows that AReaL hands to a workflow: one task each."""

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

from grpo_cl.config import GRPOConfig
from grpo_cl.domains import load_domain
from grpo_cl.errors import ConfigError
from grpo_cl.tasks import own_tasks
from grpo_cl.types import Task

Row = dict[str, str]
"""``task`` is the task as JSON."""


def task_rows(path: str, domains: Sequence[str], config: GRPOConfig) -> list[Row]:
    """The tasks of a table of ``prepare-data``, or of a split by name: train, test, small."""
    if path.endswith(".parquet"):
        return [{"task": info["task"]} for info in _column(Path(path), "extra_info")]
    split = path.rsplit("/", 1)[-1]
    found = [
        task
        for name in domains
        for task in own_tasks(load_domain(name, config.tau2_data_dir), split, config.train_split)
    ]
    return [_row(task) for task in found]


def filled(rows: Sequence[Row], batch_size: int) -> list[Row]:
    """The rows, as often as makes a batch: AReaL drops what is less than one."""
    if not rows:
        raise ConfigError("there are no tasks; name another split or domain")
    return [*rows] * ceil(batch_size / len(rows))


def _row(task: Task) -> Row:
    return {"task": task.model_dump_json(exclude_none=True)}


def _column(path: Path, name: str) -> list[Any]:
    from pyarrow import parquet  # noqa: PLC0415  # slow to import, and only needed here

    try:
        return parquet.read_table(path, columns=[name])[name].to_pylist()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read tasks from {str(path)!r}: {error}; `grpo-cl prepare-data` writes tables"
        ) from error
