"""``grpo-cl prepare-data``: tasks as tables that SkyRL and verl read."""

import argparse
from collections.abc import Sequence

from grpo_cl.config import GRPOConfig, default_data_dir
from grpo_cl.domains import Domain, load_domain
from grpo_cl.errors import ConfigError
from grpo_cl.rows import TRAIN, VALIDATION, divide, read_tasks, row, write_table
from grpo_cl.tasks import own_tasks
from grpo_cl.types import Task


def prepare(arguments: argparse.Namespace) -> int:
    """Write ``train.parquet`` and ``validation.parquet``."""
    tasks = _tasks(arguments)
    domains = {name: _domain(name, arguments) for name in {task.domain for task in tasks}}
    division = divide(tasks, arguments.train_ratio)
    for split, part in ((TRAIN, division.train), (VALIDATION, division.validation)):
        path = arguments.output_dir / f"{split}.parquet"
        if not part:
            raise ConfigError(
                f"of {len(tasks)} tasks none falls to {split}; change --train_ratio or add tasks"
            )
        rows = [
            row(domains[task.domain], task, split=split, index=index, user=arguments.user)
            for index, task in enumerate(part)
        ]
        write_table(path, rows)
        print(f"{len(rows)} tasks written to {path}")
    return 0


def _tasks(arguments: argparse.Namespace) -> list[Task]:
    names: list[str] = arguments.domains
    if arguments.input_path is None:
        if not names:
            raise ConfigError("name the domains with --domains, or a task file with --input_path")
        # Only training tasks: what a policy is measured on is in no table to train from.
        share = GRPOConfig.model_fields["train_split"].default
        found = [own_tasks(_domain(name, arguments), "train", share) for name in names]
    elif len(names) > 1:
        raise ConfigError(f"one task file is of one domain, not of {', '.join(names)}")
    else:
        found = [read_tasks(arguments.input_path, names[0] if names else None)]
    return [task for part in found for task in _first(part, arguments.max_tasks_per_domain)]


def _first(tasks: Sequence[Task], limit: int | None) -> Sequence[Task]:
    kept: dict[str, int] = {}
    chosen: list[Task] = []
    for task in tasks:
        kept[task.domain] = kept.get(task.domain, 0) + 1
        if limit is None or kept[task.domain] <= limit:
            chosen.append(task)
    return chosen


def _domain(name: str, arguments: argparse.Namespace) -> Domain:
    return load_domain(name, arguments.tau2_data_dir or default_data_dir())
