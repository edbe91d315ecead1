"""Where a plan keeps its files, and where an engine's run puts what comes of it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from grpo_cl.config import GRPOConfig
from grpo_cl.domains import Domain
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.rmatrix import BASE
from grpo_cl.plans.plan import FORMAT, Plan, Stage
from grpo_cl.plans.schedule import DrawnStage, draw, plannable
from grpo_cl.plans.scripts import ENGINES, engine_script, stage_script
from grpo_cl.rows import TRAIN, row, write_table
from grpo_cl.rundir import CheckpointFiles, encode, file_name, read_json, write_file, write_json
from grpo_cl.tasks import TaskDataLoader
from grpo_cl.types import Task

PLAN = "plan.json"
EVALUATION = "evaluation.json"
ROLLOUTS = "rollouts"
MODEL = "model"


CONFIG_VARIABLE = "GRPO_CL_CONFIG"
"""Names the description of the run whose episodes an engine plays; a plan's scripts set it."""


def planned_settings(variables: Mapping[str, str]) -> dict[str, Any]:
    """The settings of the planned run that is trained here; none where no plan is followed."""
    path = variables.get(CONFIG_VARIABLE)
    return read_json(Path(path)) if path else {}


class PlannedRun(NamedTuple):
    """A plan with the description of its run."""

    plan: Plan
    config: GRPOConfig


@dataclass(frozen=True)
class EngineRun:
    """The folder of one engine's run: a folder for the untrained policy and one for each stage."""

    root: Path

    def model_dir(self, name: str) -> Path:
        """Where the model of a stage is, itself or somewhere below."""
        return self.root / name / MODEL

    def rollouts_dir(self, name: str) -> Path:
        """Where the episodes of a stage are, as files of JSON lines."""
        return self.root / name / ROLLOUTS

    def evaluation(self, name: str = BASE) -> Path:
        """What was measured after a stage, or before the first."""
        return self.root / name / EVALUATION


def write_plan(config: GRPOConfig, folder: Path, *, tasks: TaskDataLoader | None = None) -> Plan:
    """Write everything an engine needs for the run into ``folder``."""
    config = plannable(config)
    if (folder / PLAN).exists():
        raise ConfigError(f"{folder} holds a plan already; choose another --out or remove it")
    tasks = tasks or TaskDataLoader(config)
    stages = [
        _write_stage(config, tasks.domains, folder, place, drawn)
        for place, drawn in enumerate(draw(config, tasks))
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
    drawn: DrawnStage,
) -> Stage:
    name = stage_name(index, drawn.domain)
    stage = Stage(
        index=index,
        name=name,
        domain=drawn.domain,
        table=f"{name}/{TRAIN}.parquet",
        schedule=f"{name}/schedule.jsonl",
        steps=len(drawn.steps),
        tasks_per_step=max(map(len, drawn.steps)),
        mix=dict(Counter(task.domain for tasks in drawn.steps for task in tasks)),
        checkpoint_in=(
            stage_name(index - 1, config.task_order[index - 1])
            if index
            else config.model_name_or_path
        ),
        checkpoint_out=name,
        evaluations=config.task_order,
    )
    rows = _rows(domains, drawn.steps, stage=index, user=config.rollout.user)
    write_table(folder / stage.table, rows)
    write_file(folder / stage.schedule, (f"{encode(_short(entry))}\n" for entry in rows))
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
            made = row(domains[task.domain], task, split=TRAIN, index=len(rows), user=user)
            made["extra_info"] |= {"stage": stage, "step": step}
            rows.append(made)
    return rows


def _short(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: entry["extra_info"][name] for name in ("step", "domain", "task_id")}


def _write_script(path: Path, text: str) -> None:
    write_file(path, [text])
    path.chmod(0o755)


def read_plan(folder: Path) -> PlannedRun:
    """What ``write_plan`` wrote."""
    path = folder / PLAN
    if not path.exists():
        raise ConfigError(f"no {PLAN} in {folder}; `grpo-cl plan --out DIR` writes one")
    try:
        plan = Plan.model_validate(read_json(path))
        config = GRPOConfig.model_validate(read_json(folder / plan.config))
    except ValidationError as error:
        raise ConfigError(f"{path} is no plan of this release: {error}") from error
    if plan.format != FORMAT:
        raise ConfigError(f"{path} has format {plan.format}, this release reads {FORMAT}")
    return PlannedRun(plan, config)
