"""``grpo-cl evaluate RUN --every_stage``: the R-matrix of a run on other tasks than its own."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from grpo_cl.algorithms import algorithm_for
from grpo_cl.cli.output import floor_table, format_score, is_main_process, matrix_table, score_line
from grpo_cl.cli.train import evaluation_config
from grpo_cl.config import GRPOConfig
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.carry_over import carry_over
from grpo_cl.metrics.continual import continual_scores
from grpo_cl.metrics.rmatrix import BASE, RMatrix
from grpo_cl.runs.layout import RunDir
from grpo_cl.runs.settings import read_settings
from grpo_cl.storage.files import write_json
from grpo_cl.trainer import GRPOTrainer
from grpo_cl.trainer.evaluate import domain_facts
from grpo_cl.types import Record


class StageMatrix(Record):
    """The file that ``--out`` names."""

    format: int = 1
    releases: dict[str, str]
    """The task release of each domain."""
    matrix: RMatrix


class _Stage(NamedTuple):
    """A row of the matrix and the policy that is evaluated for it."""

    after: str
    config: GRPOConfig


def evaluate_stages(path: str | None, settings: Sequence[str], out: Path | None) -> int:
    """Evaluate the initial policy of a run and the policy of every finished stage."""
    if path is None:
        raise ConfigError("--every_stage evaluates the policies of a run; name it: evaluate RUN")
    run = _require_run(Path(path).expanduser())
    stages = list(_stages(run, settings))
    tasks = TaskDataLoader(stages[0].config)
    matrix = _evaluate(stages, tasks)
    if not is_main_process():
        return 0
    print(matrix_table(matrix), "", floor_table(matrix), "", sep="\n")
    print(score_line(continual_scores(matrix.scores())))
    print(_comparison(RMatrix.load(run.r_matrix), matrix))
    if out is not None:
        write_json(out, StageMatrix(releases=tasks.releases, matrix=matrix).model_dump(mode="json"))
    return 0


def _require_run(root: Path) -> RunDir:
    run = RunDir(root)
    if not run.config.is_file() or run.last_stage() is None:
        raise ConfigError(
            f"--every_stage needs a run with a finished stage, and {str(root)!r} is none; name the "
            "run's log_dir"
        )
    config = read_settings(run.config)
    if algorithm_for(config).needs_domain:
        raise ConfigError(
            f"{config.cl_algorithm!r} evaluates each domain with weights of its own, and the model "
            "of a stage has those of one; evaluate the stages one by one: grpo-cl evaluate "
            "RUN/checkpoint_task_N --domain NAME"
        )
    return run


def _stages(run: RunDir, settings: Sequence[str]) -> Iterator[_Stage]:
    own, last = read_settings(run.config), run.last_stage()
    assert last is not None
    configs = [
        evaluation_config(str(run.stage_checkpoint(stage).root), settings)
        for stage in range(last + 1)
    ]
    yield _Stage(BASE, configs[0].model_copy(update={"model_name_or_path": own.model_name_or_path}))
    for domain, config in zip(own.task_order, configs, strict=False):
        yield _Stage(domain, config)


def _evaluate(stages: Sequence[_Stage], tasks: TaskDataLoader) -> RMatrix:
    domains = tasks.config.task_order
    facts = {domain: domain_facts(domain, tasks) for domain in domains}
    matrix = RMatrix(domains=domains, facts=facts)
    for after, config in stages:
        if after not in (BASE, *domains):  # --domain chose fewer domains than the run has
            continue
        trainer = GRPOTrainer(config)
        for domain in domains:
            print(f"after {after}: {domain}", file=sys.stderr)
            matrix = matrix.with_cell(after, domain, trainer.evaluate_task(domain))
    return matrix


def _comparison(own: RMatrix, other: RMatrix) -> str:
    """One sentence on how these scores follow those of the run's own evaluation tasks."""
    if own.domains != other.domains:
        return "not compared with the run's own evaluation: other domains"
    found = carry_over(own, other)
    gaps = ", ".join(f"{domain} {gap:+.3f}" for domain, gap in found.gaps.items())
    return (
        f"the run's own evaluation minus this one: {gaps}; correlation of their changes "
        f"{format_score(found.correlation)} ({found.pairs} cells)"
    )
