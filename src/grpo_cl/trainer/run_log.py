"""The run directory of a run in progress: metrics, episodes, R-matrix, checkpoints."""

import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TextIO

from grpo_cl.algorithms import find_algorithm
from grpo_cl.config import GRPOConfig
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.metrics.continual import continual_scores
from grpo_cl.metrics.curves import curve_scores
from grpo_cl.metrics.diagnostics import evaluation_problem, training_problem
from grpo_cl.metrics.experiment_trackers import ExperimentTracker, open_trackers
from grpo_cl.metrics.metrics_tracker import MetricsTracker
from grpo_cl.metrics.names import EPISODES, R_MATRIX, TIMES
from grpo_cl.metrics.progress import Progress, evaluation_name, step_name
from grpo_cl.metrics.rmatrix import BASE, Cell, DomainFacts, RMatrix
from grpo_cl.metrics.tables import EPISODE_COLUMNS, Table, Value, matrix_table, sample_episodes
from grpo_cl.metrics.time_left import Schedule
from grpo_cl.report.model_card import TrainedStage, describe_training
from grpo_cl.rewards import ScoredTrajectory
from grpo_cl.runs.checkpoint_state import seal_of, with_seals, write_checkpoint_state
from grpo_cl.runs.checkpoints import CheckpointPublisher
from grpo_cl.runs.episodes import episode_line
from grpo_cl.runs.evaluation_episodes import remove_evaluations_after, write_evaluation
from grpo_cl.runs.layout import CheckpointFiles, RunDir
from grpo_cl.runs.result_files import begin_checksums, write_json_result
from grpo_cl.runs.resume import IN_USE, run_of
from grpo_cl.runs.settings import NOT_RECORDED, Change, changes_between, read_settings
from grpo_cl.runs.trajectory_buffer import TrajectoryBuffer
from grpo_cl.storage.files import read_json, write_json
from grpo_cl.storage.journal import Journal
from grpo_cl.storage.lock import locked
from grpo_cl.trainer.evaluate import domain_facts
from grpo_cl.trainer.fork import write_fork
from grpo_cl.trainer.resume import Checkpoint, Resume, cut_off_after, find_resume, without_damage
from grpo_cl.types import TrajectoryGroup

logger = logging.getLogger(__name__)


class CheckpointParts(NamedTuple):
    """What writes the parts of a checkpoint."""

    policy: Callable[[Path], None]
    """Into a folder; a collective call of all ranks."""
    algorithm: Callable[[Path], None]
    """Into a folder; a collective call of all ranks."""
    trajectories: Callable[[Path], None]
    rollouts: Callable[[Path], None]


class Position(NamedTuple):
    """Finished stages, and updates made in the current one."""

    stage: int = 0
    step: int = 0


class Savable(Protocol):
    """A policy that can be saved as a model."""

    def save(self, folder: Path) -> None:
        """Write a Hugging Face model directory."""
        ...


class RunLog:
    """Writes the run directory; only the main rank writes."""

    def __init__(
        self,
        config: GRPOConfig,
        tasks: TaskDataLoader,
        *,
        is_main: bool,
        metrics: MetricsTracker | None = None,
        trackers: Sequence[ExperimentTracker] = (),
        stream: TextIO | None = None,
    ) -> None:
        self.config = config
        self.run = RunDir(config.log_dir)
        self.matrix = RMatrix(domains=config.task_order)
        self.metrics = metrics or MetricsTracker(config)
        self._tasks = tasks
        self._is_main = is_main
        self._journal: Journal | None = None
        self._episodes: Journal | None = None
        self._times: Journal | None = None
        self._evaluated: dict[str, Sequence[ScoredTrajectory]] = {}
        self._samples: list[tuple[Value, ...]] = []
        self._trackers = list(trackers)
        self._changes: list[dict[str, Any]] = []
        self._resume: Resume | None = None
        self._publisher = CheckpointPublisher()
        self._exit = ExitStack()
        self._schedule = Schedule(
            config.task_order, config.num_steps_per_task, config.eval_interval
        )
        self._progress = Progress(stream or sys.stdout, self._schedule)

    def find(self) -> Checkpoint | None:
        """Lock the run directory and find the checkpoint to start from; None to start anew.

        Nothing else is changed, so that a run whose checkpoint cannot be loaded stays as it is.
        """
        if self.config.resume_from is None:
            self.run.require_vacant()
            self._lock(self.run)
            self.run.require_vacant()  # the process that held the lock may have begun a run
            return None
        if self.config.fork is None:
            self._lock(run_of(self.config.resume_from))
        else:
            self.run.require_vacant()
        self._resume = find_resume(self.config, self._tasks.releases, is_main=self._is_main)
        if self.config.fork is None:
            self.run = self._resume.run
        checkpoint = self._resume.checkpoint
        if checkpoint is not None:
            assert self._resume.matrix is not None
            self.matrix = self._resume.matrix
            self._changes = checkpoint.state["changes"]
        return checkpoint

    def begin(self, checkpoint: Checkpoint | None) -> None:
        """Write the directory of a new run, or return that of a resumed one to ``checkpoint``.

        Every rank has loaded the checkpoint before.
        """
        if not self._is_main:
            return
        cut_off = None
        if self.config.fork is not None:
            assert checkpoint is not None and self._resume is not None
            write_fork(self._resume.run, checkpoint.files, checkpoint.state, self.config)
            self._lock(self.run)
        elif self._resume is not None:
            self.run.reopen()
            checkpoint = without_damage(self._resume)
            cut_off = cut_off_after(checkpoint, self.run) if checkpoint else None
            self._record_changes()
        else:
            begin_checksums(self.run.root)
            self.run.write_config(self.config)
        if self.config.resume_from is None or self.config.fork is not None:
            self.run.write_environment(command=sys.argv, task_releases=self._tasks.releases)
        self._open(checkpoint)
        if cut_off or self.config.fork:
            self._write_summaries()

    def begin_stage(self, stage: int, num_tasks: int) -> None:
        """Say which stage begins or goes on."""
        if self._is_main:
            domain = self.config.task_order[stage].upper()
            self._progress.note(f"Task {stage}: {domain}, training on {num_tasks} tasks")

    def begin_step(self, position: Position) -> None:
        """Say which step begins."""
        if self._is_main:
            name = step_name(self._schedule, position.stage, position.step + 1)
            self._progress.begin(name)

    def begin_evaluation(
        self, position: Position, domain: str, *, after: str | None = None
    ) -> None:
        """Say which evaluation begins: of a row of the R-matrix, or (None) within a stage."""
        if self._is_main:
            when = evaluation_name(self._schedule, *position, row=self._row(after))
            self._progress.begin(f"{when}: evaluating {domain}", is_step=False)

    def begin_episodes(self, count: int) -> None:
        """Say how many episodes this rank plays now."""
        if self._is_main:
            self._progress.begin_episodes(count)

    def episode_ended(self) -> None:
        """Count one of these episodes."""
        if self._is_main:
            self._progress.episode_ended()

    def _lock(self, run: RunDir) -> None:
        if self._is_main:
            run.require_writable()
            self._exit.enter_context(locked(run.root, remedy=IN_USE))

    def _record_changes(self) -> None:
        """Write the settings in force, and with which step each of them changed."""
        own = read_settings(self.run.config)
        if changes := changes_between(own, self.config):
            self.run.write_config(self._recorded.model_copy(update={"log_dir": own.log_dir}))
            self._progress.note(_describe(changes))
        if self._changes:
            write_json(self.run.config_changes, self._changes)
        else:
            self.run.config_changes.unlink(missing_ok=True)

    @property
    def _recorded(self) -> GRPOConfig:
        """The configuration that is written into the run directory."""
        return self.config.model_copy(update=NOT_RECORDED)

    def _open(self, checkpoint: Checkpoint | None) -> None:
        journals = {
            name: Journal(path, has_checksums=True) for name, path in self.run.journals.items()
        }
        for name, journal in journals.items():
            if checkpoint is None:
                journal.truncate(0)
            else:
                state = checkpoint.state
                journal.truncate(state["offsets"][name], seal_of(state, name))
        self._journal, self._episodes = journals["metrics"], journals["episodes"]
        self._times = Journal(self.run.times_journal)
        self._recall_times(checkpoint)
        if self.config.resume_from is not None:
            row = checkpoint.state["position"]["stage"] if checkpoint else -1
            remove_evaluations_after(self.run, row)
        self._trackers = open_trackers(self.config, self.run.root, own=self._trackers)
        self.metrics.forward_to(journal=self._journal, trackers=self._trackers)
        if checkpoint:
            self.metrics.metrics.update(self.run.read_metrics())

    def _recall_times(self, checkpoint: Checkpoint | None) -> None:
        """Estimate the time left of a resumed run from the times of its earlier processes."""
        if checkpoint is None:
            return
        assert self._resume is not None
        time_left = self._progress.time_left
        for line in self._resume.times:
            time_left.add_line(line)
        position = Position(**checkpoint.state["position"])
        time_left.move_to(position.stage, position.step, rows=len(self.matrix.rows))

    def log_step(self, position: Position, numbers: Mapping[str, float]) -> None:
        """Log the metrics of one update."""
        if not self._is_main:
            return
        logged = self._reproducible(position, "train", numbers)
        self.metrics.log_step(position.stage, position.step, logged)
        self.metrics.log_times(position.stage, position.step, numbers)
        self._progress.step(position.stage, position.step + 1, numbers)
        domain = self.config.task_order[position.stage]
        records = self.metrics.metrics.get(f"task_{position.stage}/train", [])
        if problem := training_problem(domain, records):
            self._progress.erase()
            logger.warning("%s", problem)

    def log_episodes(self, groups: Sequence[TrajectoryGroup], step: int) -> None:
        """Append the episodes of one update to the trajectory journal."""
        if self._episodes is None:
            return
        for group in groups:
            for trajectory, reward in zip(group.trajectories, group.rewards, strict=True):
                self._episodes.append({"step": step} | episode_line(trajectory, reward))

    def log_evaluation(
        self,
        position: Position,
        domain: str,
        cell: Cell,
        counts: Mapping[str, float],
        **place: str,
    ) -> None:
        """Log an evaluation of one domain, with its rollout counts."""
        if self._is_main:
            after = place.get("after")
            row = self._row(after)
            times = self._reproducible(position, "eval", counts, domain=domain, row=row)
            numbers = {**cell.numbers(), **place, **times}
            self.metrics.log_evaluation(position.stage, position.step, domain, numbers)
            when = evaluation_name(self._schedule, *position, row=row)
            self._progress.evaluation(domain, cell.numbers(), row=row, when=when)

    def _row(self, after: str | None) -> int | None:
        """The index of a row of the R-matrix; None for an evaluation within a stage."""
        return None if after is None else [BASE, *self.config.task_order].index(after)

    def hold_episodes(self, domain: str, episodes: Sequence[ScoredTrajectory]) -> None:
        """Hold the episodes of a domain's evaluation until it is known which cell they are of."""
        self._evaluated = {domain: episodes}

    def log_cell(
        self, position: Position, place: tuple[str, str], cell: Cell, counts: Mapping[str, float]
    ) -> None:
        """Log one cell of the R-matrix; ``place`` is the stage it follows and the domain."""
        after, domain = place
        self._write_evaluation(position, after, domain)
        self.matrix = self.matrix.with_cell(after, domain, cell)
        self.log_evaluation(position, domain, cell, counts, after=after)
        problem = evaluation_problem(domain, cell)
        if problem and after == BASE and self._is_main:
            self._progress.erase()
            logger.warning("%s", problem)

    def _write_evaluation(self, position: Position, after: str, domain: str) -> None:
        row = 0 if after == BASE else position.stage + 1
        episodes = self._evaluated.pop(domain, ())  # an imported run has none
        if self._is_main:
            limit = self.config.logging.keep_evaluation_episodes
            write_evaluation(self.run, (row, after, domain), episodes, limit=limit)
            self._samples += sample_episodes(after, episodes)

    def log_row(self, position: Position, statistics: Mapping[str, Mapping[str, float]]) -> None:
        """Log the transfer scores of a finished row of the R-matrix."""
        if not self._is_main:
            return
        rows = self.matrix.scores()
        learned = self.config.task_order[: len(rows) - 1]
        scores = {**continual_scores(rows), **curve_scores(self.metrics.metrics, learned)}
        known = {name: value for name, value in scores.items() if value is not None}
        # Row 0 is logged at step 0: wandb drops points with a smaller step than the last.
        self.metrics.log_transfer(position.stage, known, step=position.step)
        tables = {
            R_MATRIX: matrix_table(self.matrix),
            EPISODES: Table(EPISODE_COLUMNS, self._samples),
        }
        self.metrics.log_tables(position.stage, position.step, tables)
        self._samples = []
        self.metrics.log_buffer(position.stage, position.step, statistics)

    def has_row(self, after: str) -> bool:
        """Whether the domains were evaluated after a stage."""
        return any(row.after == after for row in self.matrix.rows)

    def is_due(self, position: Position) -> bool:
        """Whether a checkpoint is saved at this position."""
        last = position.step == self.config.num_steps_per_task
        return last or position.step % self.config.logging.save_interval == 0

    def save(self, step: int, state: Mapping[str, Any], parts: CheckpointParts) -> None:
        """Save a checkpoint for an exact resume; a collective call of all ranks.

        Its files are written when this returns, and on the disk after ``wait_for_checkpoints``.
        """
        if not self._is_main:
            parts.policy(self.run.checkpoints_dir)
            parts.algorithm(self.run.checkpoints_dir)
            return
        assert self._journal is not None
        assert self._episodes is not None
        seals = {"metrics": self._journal.seal(), "episodes": self._episodes.seal()}
        whole = {
            **with_seals(state, seals),
            "global_step": step,
            "changes": self._changes,
            "r_matrix": self.matrix.to_json(),
        }

        def fill(files: CheckpointFiles) -> None:
            files.policy_dir.mkdir()
            parts.policy(files.policy_dir)
            files.algorithm_dir.mkdir()
            parts.algorithm(files.algorithm_dir)
            parts.trajectories(files.trajectories)
            parts.rollouts(files.rollouts)
            files.write_config(self._recorded)
            write_checkpoint_state(files, whole)

        section = self.config.logging
        self._publisher.save(
            lambda: self.run.draft_step(
                step,
                fill,
                keep=section.keep_checkpoints,
                keep_stage_ends=section.keep_stage_ends,
            )
        )

    def wait_for_checkpoints(self) -> None:
        """Wait until the saved checkpoints are on the disk."""
        self._publisher.wait()

    def close_stage(self, stage: int, policy: Savable, buffer: TrajectoryBuffer) -> None:
        """Save the model and the buffer at the end of a stage."""

        def fill(files: CheckpointFiles) -> None:
            policy.save(files.model_dir)
            describe_training(files.model_dir, self._trained_stage())
            buffer.save(files.trajectories)
            files.write_config(self._recorded)

        if self._is_main:
            self._publisher.save(lambda: self.run.draft_stage(stage, fill))
            self._write_summaries()
        else:
            policy.save(self.run.root)

    def _trained_stage(self) -> TrainedStage:
        environment = self.run.environment
        return TrainedStage(
            config=self._recorded,
            matrix=self.matrix,
            environment=read_json(environment) if environment.exists() else {},
            needs_domain=find_algorithm(self.config.cl_algorithm).needs_domain,
        )

    def finish(self) -> dict[str, Any]:
        """Write metrics and R-matrix, and return the summary."""
        if self._is_main:
            self._write_summaries()
        return self.summary()

    def summary(self) -> dict[str, Any]:
        """Final metrics and continual-learning scores, with the run directory."""
        scores = continual_scores(self.matrix.scores())
        return {**self.metrics.get_summary(), **scores, "run": str(self.run.root)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with self._exit:  # releases the lock last
            for tracker in self._trackers:
                tracker.close()
            for journal in (self._journal, self._episodes, self._times):
                if journal is not None:
                    journal.close()
            self._progress.erase()
            self._publisher.wait()

    def _reproducible(
        self, position: Position, kind: str, numbers: Mapping[str, float], **place: Any
    ) -> dict[str, float]:
        """The reproducible numbers; wall times have a journal that no resume truncates."""
        assert self._times is not None
        times = {name: value for name, value in numbers.items() if name in TIMES}
        clock = {"lap_s": self._progress.lap_s, "ended_at": time.time()}
        self._times.append({"kind": kind, **position._asdict(), **place, **times, **clock})
        return {name: value for name, value in numbers.items() if name not in TIMES}

    def _write_summaries(self) -> None:
        self.metrics.save(self.run.metrics)
        matrix = self.matrix.model_copy(update={"facts": self._facts})
        write_json_result(self.run.r_matrix, matrix.to_json())

    @cached_property
    def _facts(self) -> dict[str, DomainFacts]:
        return {name: domain_facts(name, self._tasks) for name in self.config.task_order}


def _describe(changes: Sequence[Change]) -> str:
    listed = ", ".join(f"{made.name} {made.before} → {made.after}" for made in changes)
    return f"changed settings: {listed}"
