"""An engine's run, stage by stage, into the files that a run of our own leaves."""

from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from statistics import fmean
from typing import Any

from grpo_cl.buffer import TrajectoryBuffer
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.intake.checkpoints import SavedModel, find_model
from grpo_cl.intake.measuring import measure, read_evaluation
from grpo_cl.intake.rollouts import Episodes, Played
from grpo_cl.metrics.rmatrix import BASE
from grpo_cl.plans import EngineRun, Evaluation, PlannedRun, Stage, read_plan
from grpo_cl.rewards import RewardOracle
from grpo_cl.rundir import read_journal
from grpo_cl.tasks import TaskDataLoader
from grpo_cl.trainer.effort import Effort
from grpo_cl.trainer.record import Position, RunRecord
from grpo_cl.trainer.rollouts import Batch, credit, is_telling, summary, told_rewards


def import_run(plan_dir: Path, run_dir: Path, out: Path, *, evaluate: bool) -> dict[str, Any]:
    """Write the run directory ``out``; with ``evaluate``, what was not measured is played."""
    planned = read_plan(plan_dir)
    config = _own(planned.config, out)
    tasks = TaskDataLoader(config)
    _require_releases(planned, tasks)
    run = Intake(config, tasks, EngineRun(run_dir), evaluate=evaluate)
    rows = [run.evaluation(BASE, config.model_name_or_path, planned.plan.releases)]
    for stage in planned.plan.stages:
        model = find_model(run.files.model_dir(stage.name))
        rows.append(run.evaluation(stage.name, str(model), planned.plan.releases))
    # Everything is there: from here on the directory is written.
    with run.record as record:
        record.begin()
        run.log_row(Position(), BASE, rows[0])
        for stage, measured in zip(planned.plan.stages, rows[1:], strict=True):
            schedule = list(read_journal(plan_dir / stage.schedule))
            run.log_stage(stage, schedule, measured)
        return record.finish()


def _own(config: GRPOConfig, out: Path) -> GRPOConfig:
    logging = config.logging.model_copy(update={"trackers": ()})
    return config.model_copy(update={"log_dir": out, "logging": logging, "resume_from": None})


def _require_releases(planned: PlannedRun, tasks: TaskDataLoader) -> None:
    for domain, release in planned.plan.releases.items():
        if tasks.releases[domain] != release:
            raise ConfigError(
                f"the plan was made with release {release!r} of {domain} and here is "
                f"{tasks.releases[domain]!r}; set tau2_data_dir as it was, or plan again"
            )


class Intake:
    """A run directory that fills with another engine's run."""

    def __init__(
        self, config: GRPOConfig, tasks: TaskDataLoader, files: EngineRun, *, evaluate: bool
    ) -> None:
        self.files = files
        self.record = RunRecord(config, tasks, is_main=True, stream=StringIO())
        self._config = config
        self._evaluate = evaluate
        self._episodes = Episodes(tasks, RewardOracle(tasks.domains, basis=config.reward.basis))
        self._buffer = TrajectoryBuffer(config)

    def evaluation(self, name: str, model: str, releases: Mapping[str, str]) -> Evaluation:
        """A row of the R-matrix: read, or played and kept beside the engine's files."""
        path = self.files.evaluation(name)
        found = read_evaluation(path, releases) if path.exists() else None
        missing = [d for d in self._config.task_order if found is None or d not in found.cells]
        if not missing:
            assert found is not None
            return found
        if not self._evaluate:
            raise ConfigError(
                f"{path} lacks {', '.join(missing)}; write it with `grpo-cl evaluate --out`, as "
                "the scripts of the plan do, or let --evaluate play what is missing"
            )
        order = {"task_order": tuple(missing)}
        played = measure(self._config.model_copy(update=order), model)
        cells = {**played.cells, **(found.cells if found else {})}
        whole = played.model_copy(update={"cells": cells, "releases": dict(releases)})
        whole.save(path)
        return whole

    def log_row(self, position: Position, after: str, measured: Evaluation) -> None:
        """The measurements after a stage, or before the first."""
        for domain in self._config.task_order:
            self.record.log_cell(position, (after, domain), measured.cells[domain], {})
        self.record.log_row(position, self._buffer.get_statistics())

    def log_stage(self, stage: Stage, schedule: list[dict[str, Any]], measured: Evaluation) -> None:
        """The episodes, measurements and model of one stage."""
        folder = self.files.rollouts_dir(stage.name)
        samples = self._config.num_samples_per_prompt
        steps = self._episodes.read(folder, schedule, samples=samples)
        for place, played in enumerate(steps):
            number = stage.index * self._config.num_steps_per_task + place
            for group in played.groups:
                self._buffer.add(group, step=number)
            self.record.keep(played.groups, number)
            self.record.log_step(Position(stage.index, place), _numbers(played, self._config))
        end = Position(stage.index, self._config.num_steps_per_task)
        self.log_row(end, stage.domain, measured)
        model = SavedModel(find_model(self.files.model_dir(stage.name)))
        self.record.close_stage(stage.index, model, self._buffer)


def _numbers(played: Played, config: GRPOConfig) -> dict[str, float]:
    """What a step's log says of its episodes; of samples, only what they scored."""
    groups = played.groups
    if not any(told_rewards(group, group.training_rewards) for group in groups):
        scores = played.scores
        return {"reward_mean": fmean(scores), "reward_max": max(scores)} if scores else {}
    credits = [credit(group, group.training_rewards, config) for group in groups]
    flat = sum(not is_telling(given) for given in credits)
    effort = Effort()
    effort.add([one for group in groups for one in group.trajectories])
    counts = {name: value for name, value in effort.take().items() if name != "play_s"}
    return {**summary(Batch(groups, 0), num_flat=flat), **counts}
