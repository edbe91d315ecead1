"""``grpo-cl prepare-data``, ``plan``, ``import-run``: train with SkyRL, verl or another engine."""

import argparse
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from grpo_cl.cli.options import read_config
from grpo_cl.cli.output import matrix_table, table
from grpo_cl.config import GRPOConfig, default_data_dir
from grpo_cl.envs import Domain, load_domain
from grpo_cl.envs.tasks import own_tasks
from grpo_cl.errors import ConfigError
from grpo_cl.integrations.import_run import find_model, import_run
from grpo_cl.integrations.plan import EngineRun, read_plan, write_plan
from grpo_cl.integrations.plan.scripts import ENGINES
from grpo_cl.integrations.rows import (
    TRAIN,
    VALIDATION,
    TaskSplit,
    TrainingTasks,
    read_training_tasks,
    split_tasks,
    task_row,
    write_table,
)
from grpo_cl.metrics.rmatrix import RMatrix
from grpo_cl.report import write_report
from grpo_cl.runs.layout import RunDir
from grpo_cl.types import Task


def prepare(arguments: argparse.Namespace) -> int:
    """Write ``train.parquet`` and ``validation.parquet`` for SkyRL and verl."""
    load = cache(lambda name: _domain(name, arguments))
    found = _tasks(arguments, load)
    parts = split_tasks(found.tasks, arguments.train_ratio)
    if found.validation:
        parts = TaskSplit(train=found.tasks, validation=found.validation)
    by_split = {TRAIN: parts.train, VALIDATION: parts.validation}
    if found.left_out:
        print(f"{len(found.left_out)} test tasks are left out")
    for split, part in by_split.items():
        if not part:
            test = f", {len(found.left_out)} of them are test tasks" if found.left_out else ""
            raise ConfigError(
                f"none of {sum(map(len, found))} tasks is in {split}{test}; change --train_ratio "
                "or add tasks"
            )
    for split, part in by_split.items():
        path = arguments.output_dir / f"{split}.parquet"
        rows = [
            task_row(load(task.domain), task, split=split, index=index, user=arguments.user)
            for index, task in enumerate(part)
        ]
        write_table(path, rows)
        print(f"{len(rows)} tasks written to {path}")
    return 0


def _tasks(arguments: argparse.Namespace, load: Callable[[str], Domain]) -> TrainingTasks:
    names: list[str] = arguments.domains
    limit: int | None = arguments.max_tasks_per_domain
    if arguments.input_path is None:
        if not names:
            raise ConfigError("name the domains with --domains, or a task file with --input_path")
        # Training tasks only: evaluation tasks must not be trained on.
        fraction = GRPOConfig.model_fields["train_split"].default
        tasks = [task for name in names for task in own_tasks(load(name), TRAIN, fraction)]
        return TrainingTasks(_first(tasks, limit), [], [])
    if len(names) > 1:
        raise ConfigError(
            "with --input_path, --domains is the one domain of tasks that name none; it names "
            f"{', '.join(names)}"
        )
    found = read_training_tasks(arguments.input_path, names[0] if names else None, load)
    return found._replace(tasks=_first(found.tasks, limit))


def _first(tasks: Sequence[Task], limit: int | None) -> list[Task]:
    counts: dict[str, int] = {}
    first: list[Task] = []
    for task in tasks:
        counts[task.domain] = counts.get(task.domain, 0) + 1
        if limit is None or counts[task.domain] <= limit:
            first.append(task)
    return first


def _domain(name: str, arguments: argparse.Namespace) -> Domain:
    return load_domain(name, arguments.tau2_data_dir or default_data_dir(), tools=arguments.tools)


def plan(arguments: argparse.Namespace) -> int:
    """Write a run's schedule for other engines and print its stages."""
    written = write_plan(read_config(arguments.settings), arguments.out)
    rows: list[list[object]] = [["stage", "steps", "tasks", "starts from"]]
    for stage in written.stages:
        mix = ", ".join(f"{domain} {count}" for domain, count in stage.mix.items())
        rows.append([stage.name, stage.steps, mix, stage.checkpoint_in])
    print(table(rows))
    scripts = ", ".join(f"{engine}.sh" for engine in ENGINES)
    print(f"written to {arguments.out}; start one of {scripts} there")
    return 0


def import_from_engine(arguments: argparse.Namespace) -> int:
    """Write the run directory and its report, or only print the path of a stage's model."""
    if arguments.checkpoint is not None:
        print(_model_dir(arguments.plan, arguments.run_dir, arguments.checkpoint))
        return 0
    if arguments.out is None:
        raise ConfigError("name the directory to write with --out DIR")
    import_run(arguments.plan, arguments.run_dir, arguments.out, evaluate=arguments.evaluate)
    print(matrix_table(RMatrix.load(RunDir(arguments.out).r_matrix)))
    print(f"report: {write_report(arguments.out)}")
    return 0


def _model_dir(plan: Path, run: Path, name: str) -> Path:
    names = [stage.name for stage in read_plan(plan).plan.stages]
    if name not in names:
        raise ConfigError(f"no stage {name!r} in the plan; its stages are {', '.join(names)}")
    return find_model(EngineRun(run).model_dir(name))
