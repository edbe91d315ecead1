"""The training and validation tables of a SkyRL run, checked before Ray starts."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from grpo_cl.envs import domain_for
from grpo_cl.errors import ConfigError
from grpo_cl.integrations.episode_context import (
    episode_config,
    require_hosted_models,
    require_tools,
)
from grpo_cl.integrations.rows import (
    SOLO,
    TRAIN,
    read_table,
    read_tasks,
    read_training_tasks,
    task_row,
    write_table,
)

DEFAULT_BATCH_SIZE = 32
"""Tasks of one step if the settings name no number and the table has as many."""

TASK_FILES = (".json", ".jsonl")


class BatchSizes(NamedTuple):
    """Tasks of one step and of one optimizer step in it."""

    train: int
    mini: int


def fit_batch_sizes(
    num_rows: int, *, train: int | None, mini: int | None, num_gpus: int
) -> BatchSizes:
    """Batch sizes for a table; those that are None are chosen so that they fit it.

    SkyRL divides a batch into mini-batches and these over the GPUs, and drops an incomplete batch.
    """
    if train is None:
        unit = mini or num_gpus
        largest = min(num_rows, max(DEFAULT_BATCH_SIZE, unit))
        train = largest // unit * unit or largest
    if not 1 <= train <= num_rows:
        raise ConfigError(
            f"trainer.train_batch_size={train} must be between 1 and the {num_rows} rows of "
            "data.train_data, because SkyRL drops an incomplete batch"
        )
    mini = train if mini is None else mini
    if mini < 1 or train % mini:
        raise ConfigError(
            f"trainer.policy_mini_batch_size={mini} must divide trainer.train_batch_size={train}"
        )
    return BatchSizes(train, mini)


def table_of(path: str, options: Mapping[str, Any], folder: Path, *, split: str) -> str:
    """The path of a table; a task file is written as one under ``folder``.

    Test tasks of a file are left out of a training table.
    """
    if not path.endswith(TASK_FILES):
        return path
    config = episode_config(options)
    load = cache(lambda name: domain_for(config, name))
    user = options.get("user_strategy", SOLO)
    if split == TRAIN:
        tasks = read_training_tasks(Path(path), None, load).tasks
    else:
        tasks = read_tasks(Path(path), None, load)
    if not tasks:
        raise ConfigError(f"{path!r} has no tasks for {split}: all of its tasks are test tasks")
    rows = [
        task_row(load(task.domain), task, split=split, index=index, user=user)
        for index, task in enumerate(tasks)
    ]
    table = folder / split / f"{Path(path).stem}.parquet"
    write_table(table, rows)
    return str(table)


def check_tables(paths: Sequence[str], options: Mapping[str, Any]) -> int:
    """The number of rows; raises ``ConfigError`` if an episode of a row could not be played."""
    num_rows = 0
    for path in paths:
        table = read_table(Path(path))
        config = episode_config({"user_strategy": table.user, **options})
        require_hosted_models(config)
        domains = {name: domain_for(config, name) for name in {t.domain for t in table.tasks}}
        for task in table.tasks:
            require_tools(domains[task.domain], task)
        num_rows += len(table.tasks)
    return num_rows
