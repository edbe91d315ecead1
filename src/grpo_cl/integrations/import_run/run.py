"""Writes a run directory from the run of another engine, stage by stage."""

from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from statistics import fmean
from typing import Any

from grpo_cl.config import GRPOConfig, LoraConfig
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.errors import ConfigError
from grpo_cl.integrations.import_run.checkpoints import SavedModel, find_model
from grpo_cl.integrations.import_run.rollouts import EpisodeReader, ImportedStep
from grpo_cl.integrations.plan import EngineRun, Evaluation, PlannedRun, Stage, read_plan
from grpo_cl.llm import ModelUse
from grpo_cl.metrics.rmatrix import BASE
from grpo_cl.rewards import RewardOracle
from grpo_cl.rewards.advantages import compute_advantages, has_signal, valid_rewards
from grpo_cl.runs.trajectory_buffer import TrajectoryBuffer
from grpo_cl.storage.journal import read_journal
from grpo_cl.trainer import GRPOTrainer
from grpo_cl.trainer.collect import Batch, summarize
from grpo_cl.trainer.rollout_stats import RolloutStats
from grpo_cl.trainer.run_log import Position, RunLog


def import_run(plan_dir: Path, run_dir: Path, out: Path, *, evaluate: bool) -> dict[str, Any]:
    """Write the run directory ``out``; with ``evaluate``, run the missing evaluations."""
    planned = read_plan(plan_dir)
    config = _import_config(planned.config, out)
    tasks = TaskDataLoader(config)
    _require_releases(planned, tasks)
    importer = RunImporter(config, tasks, EngineRun(run_dir), evaluate=evaluate)
    rows = [importer.evaluation(BASE, config.model_name_or_path, planned.plan.releases)]
    for stage in planned.plan.stages:
        model = find_model(importer.files.model_dir(stage.name))
        rows.append(importer.evaluation(stage.name, str(model), planned.plan.releases))
    # All inputs exist: write the run directory.
    with importer.run_log as run_log:
        run_log.begin(run_log.find())
        importer.log_row(Position(), BASE, rows[0])
        for stage, evaluation in zip(planned.plan.stages, rows[1:], strict=True):
            schedule = list(read_journal(plan_dir / stage.schedule))
            importer.log_stage(stage, schedule, evaluation)
        return run_log.finish()


def _import_config(config: GRPOConfig, out: Path) -> GRPOConfig:
    logging = config.logging.model_copy(update={"trackers": ()})
    return config.model_copy(update={"log_dir": out, "logging": logging, "resume_from": None})


def _require_releases(planned: PlannedRun, tasks: TaskDataLoader) -> None:
    for domain, release in planned.plan.releases.items():
        if tasks.releases[domain] != release:
            raise ConfigError(
                f"the plan was made with release {release!r} of {domain}, but the release here is "
                f"{tasks.releases[domain]!r}; use the plan's tau2_data_dir, or plan again"
            )


class RunImporter:
    """Writes the evaluations, episodes and models of another engine's run to a run directory."""

    def __init__(
        self, config: GRPOConfig, tasks: TaskDataLoader, files: EngineRun, *, evaluate: bool
    ) -> None:
        self.files = files
        self.run_log = RunLog(config, tasks, is_main=True, stream=StringIO())
        self._config = config
        self._evaluate = evaluate
        self._episodes = EpisodeReader(
            tasks, RewardOracle(tasks.domains, basis=config.reward.basis)
        )
        self._buffer = TrajectoryBuffer(config)

    def evaluation(self, name: str, model: str, releases: Mapping[str, str]) -> Evaluation:
        """A row of the R-matrix: read from its file, or evaluated and saved there."""
        path = self.files.evaluation(name)
        saved = read_evaluation(path, releases) if path.exists() else None
        missing = [d for d in self._config.task_order if saved is None or d not in saved.cells]
        if not missing:
            assert saved is not None
            return saved
        if not self._evaluate:
            raise ConfigError(
                f"{path} lacks {', '.join(missing)}; write it with `grpo-cl evaluate --out`, as "
                "the scripts of the plan do, or add --evaluate to run the missing evaluations"
            )
        order = {"task_order": tuple(missing)}
        new = evaluate_model(self._config.model_copy(update=order), model)
        cells = {**new.cells, **(saved.cells if saved else {})}
        complete = new.model_copy(update={"cells": cells, "releases": dict(releases)})
        complete.save(path)
        return complete

    def log_row(self, position: Position, after: str, evaluation: Evaluation) -> None:
        """Log the evaluation after a stage, or before the first."""
        for domain in self._config.task_order:
            self.run_log.log_cell(position, (after, domain), evaluation.cells[domain], {})
        self.run_log.log_row(position, self._buffer.get_statistics())

    def log_stage(
        self, stage: Stage, schedule: list[dict[str, Any]], evaluation: Evaluation
    ) -> None:
        """Log the episodes, evaluation and model of one stage."""
        folder = self.files.rollouts_dir(stage.name)
        samples = self._config.num_samples_per_prompt
        steps = self._episodes.read(folder, schedule, samples=samples)
        for index, imported in enumerate(steps):
            step = stage.index * self._config.num_steps_per_task + index
            for group in imported.groups:
                self._buffer.add(group, step=step)
            self.run_log.log_episodes(imported.groups, step)
            self.run_log.log_step(
                Position(stage.index, index), _step_metrics(imported, self._config)
            )
        end = Position(stage.index, self._config.num_steps_per_task)
        self.log_row(end, stage.domain, evaluation)
        model = SavedModel(find_model(self.files.model_dir(stage.name)))
        self.run_log.close_stage(stage.index, model, self._buffer)


def _step_metrics(imported: ImportedStep, config: GRPOConfig) -> dict[str, float]:
    """The rollout metrics of a step; for samples without messages, only their rewards."""
    groups = imported.groups
    if not any(valid_rewards(group, group.training_rewards) for group in groups):
        scores = imported.scores
        return {"reward_mean": fmean(scores), "reward_max": max(scores)} if scores else {}
    advantages = [compute_advantages(group, group.training_rewards, config) for group in groups]
    flat = sum(not has_signal(group) for group in advantages)
    stats = RolloutStats(ModelUse())
    stats.add([episode for group in groups for episode in group.trajectories])
    counts = {name: value for name, value in stats.take().items() if name != "play_s"}
    return {**summarize(Batch(groups, 0), num_flat=flat), **counts}


def evaluate_model(config: GRPOConfig, model: str) -> Evaluation:
    """Run the evaluation of ``config`` with a saved model."""
    # No training: neither a LoRA adapter nor a reference model is needed.
    inference = {"model_name_or_path": model, "kl_coef": 0.0, "lora": LoraConfig()}
    algorithm = {"cl_algorithm": "sequential", "cl_options": {}}
    trainer = GRPOTrainer(config.model_copy(update=inference | algorithm))
    cells = {domain: trainer.evaluate_task(domain) for domain in config.task_order}
    return Evaluation(model=model, releases=trainer.tasks.releases, cells=cells)


def read_evaluation(path: Path, releases: Mapping[str, str]) -> Evaluation:
    """Read an evaluation and check that it used the task releases of the plan."""
    evaluation = Evaluation.load(path)
    for domain in evaluation.cells.keys() & releases.keys():
        if evaluation.releases.get(domain) != releases[domain]:
            raise ConfigError(
                f"{path} evaluates release {evaluation.releases.get(domain)!r} of {domain}, but "
                f"the plan uses {releases[domain]!r}; evaluate again with the plan's tasks"
            )
    return evaluation
