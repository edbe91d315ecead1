"""Writes and reads the folder of a plan; names the files of an engine's run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from grpo_cl.config import GRPOConfig
from grpo_cl.envs import Domain
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.errors import ConfigError
from grpo_cl.integrations.plan.records import FORMAT, Plan, Stage
from grpo_cl.integrations.plan.schedule import StageTasks, plannable_config, stage_tasks
from grpo_cl.integrations.plan.scripts import ENGINES, engine_script, stage_script
from grpo_cl.integrations.rows import TRAIN, task_row, write_table
from grpo_cl.metrics.rmatrix import BASE
from grpo_cl.runs.layout import CheckpointFiles, file_name
from grpo_cl.storage.encoding import encode
from grpo_cl.storage.files import read_json, write_file, write_json
from grpo_cl.types import Task, first_problem

PLAN = "plan.json"
EVALUATION = "evaluation.json"
ROLLOUTS = "rollouts"
MODEL = "model"


CONFIG_VARIABLE = "GRPO_CL_CONFIG"
"""Path of the planned run's config for the engine's episodes; a plan's scripts set it."""


def planned_settings(variables: Mapping[str, str]) -> dict[str, Any]:
    """The settings of the planned run; empty if no plan is set in ``variables``."""
    path = variables.get(CONFIG_VARIABLE)
    return read_json(Path(path)) if path else {}


class PlannedRun(NamedTuple):
    """A plan with the config of its run."""

    plan: Plan
    config: GRPOConfig


@dataclass(frozen=True)
class EngineRun:
    """The folder of an engine's run: one subfolder for the base policy and one per stage."""

    root: Path

    def model_dir(self, name: str) -> Path:
        """The folder that has the model of a stage, directly or in a subfolder."""
        return self.root / name / MODEL

    def rollouts_dir(self, name: str) -> Path:
        """The folder of a stage's episodes, as files of JSON lines."""
        return self.root / name / ROLLOUTS

    def evaluation(self, name: str = BASE) -> Path:
        """The evaluation file of a stage, or of the base policy."""
        return self.root / name / EVALUATION


def write_plan(config: GRPOConfig, folder: Path, *, tasks: TaskDataLoader | None = None) -> Plan:
    """Write the tasks, schedule and scripts of the run to ``folder``."""
    config = plannable_config(config)
    if (folder / PLAN).exists():
        raise ConfigError(f"{folder} already holds a plan; choose another --out or remove it")
    tasks = tasks or TaskDataLoader(config)
    stages = [
        _write_stage(config, tasks.domains, folder, index, planned)
        for index, planned in enumerate(stage_tasks(config, tasks))
    ]
    files = CheckpointFiles(folder)
    files.write_config(config)
    plan = Plan(
        config=files.config.name,
        releases=tasks.releases,
        base_evaluations=config.task_order,
        stages=tuple(stages),
    )
    for engine in ENGINES:
        for stage in stages:
            text = stage_script(engine, stage, plan, config)
            _write_script(folder / stage.name / f"{engine}.sh", text)
        _write_script(folder / f"{engine}.sh", engine_script(engine, plan))
    write_json(folder / PLAN, plan.model_dump(mode="json"))
    return plan


def _write_stage(
    config: GRPOConfig,
    domains: Mapping[str, Domain],
    folder: Path,
    index: int,
    planned: StageTasks,
) -> Stage:
    name = stage_name(index, planned.domain)
    stage = Stage(
        index=index,
        name=name,
        domain=planned.domain,
        table=f"{name}/{TRAIN}.parquet",
        schedule=f"{name}/schedule.jsonl",
        steps=len(planned.steps),
        tasks_per_step=max(map(len, planned.steps)),
        mix=dict(Counter(task.domain for tasks in planned.steps for task in tasks)),
        checkpoint_in=(
            stage_name(index - 1, config.task_order[index - 1])
            if index
            else config.model_name_or_path
        ),
        checkpoint_out=name,
        evaluations=config.task_order,
    )
    rows = _rows(domains, planned.steps, stage=index, user=config.rollout.user)
    write_table(folder / stage.table, rows)
    write_file(folder / stage.schedule, (f"{encode(_schedule_entry(row))}\n" for row in rows))
    return stage


def stage_name(index: int, domain: str) -> str:
    """The name of a stage's folder."""
    return f"stage_{index}_{file_name(domain)}"


def _rows(
    domains: Mapping[str, Domain], steps: Sequence[Sequence[Task]], *, stage: int, user: str
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for step, tasks in enumerate(steps):
        for task in tasks:
            row = task_row(domains[task.domain], task, split=TRAIN, index=len(rows), user=user)
            row["extra_info"] |= {"stage": stage, "step": step}
            rows.append(row)
    return rows


def _schedule_entry(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row["extra_info"][name] for name in ("step", "domain", "task_id")}


def _write_script(path: Path, text: str) -> None:
    write_file(path, [text])
    path.chmod(0o755)


def read_plan(folder: Path) -> PlannedRun:
    """Read a folder written by ``write_plan``."""
    path = folder / PLAN
    if not path.exists():
        raise ConfigError(f"no {PLAN} in {folder}; `grpo-cl plan --out DIR` writes one")
    try:
        plan = Plan.model_validate(read_json(path))
        config = GRPOConfig.model_validate(read_json(folder / plan.config))
    except ValidationError as error:
        raise ConfigError(
            f"{path} is not a plan of this release: {first_problem(error)}"
        ) from error
    if plan.format != FORMAT:
        raise ConfigError(f"{path} has format {plan.format}; this release reads {FORMAT}")
    return PlannedRun(plan, config)
