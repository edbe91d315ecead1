"""What a run writes down while it goes on: numbers, episodes, measurements, checkpoints."""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TextIO

from grpo_cl.audit import audit_task
from grpo_cl.buffer import TrajectoryBuffer
from grpo_cl.config import GRPOConfig
from grpo_cl.metrics.continual import continual_scores
from grpo_cl.metrics.curves import curve_scores
from grpo_cl.metrics.progress import Progress
from grpo_cl.metrics.rmatrix import Cell, DomainFacts, RMatrix
from grpo_cl.metrics.tracker import MetricsTracker
from grpo_cl.metrics.trackers import Tracker, open_trackers, require_trackers
from grpo_cl.rundir import Journal, RunDir, read_json, resume_point, write_json
from grpo_cl.rundir.layout import CheckpointFiles
from grpo_cl.tasks import TaskDataLoader
from grpo_cl.types import TrajectoryGroup

logger = logging.getLogger(__name__)

TIMES = (
    *("step_s", "rollout_s", "update_s", "play_s", "tokens_per_s"),
    *("peak_sample_mb", "peak_score_mb", "peak_update_mb"),
)
"""Numbers of the clock and of a GPU's memory: they have a journal of their own, which no resume
cuts back."""


Parts = tuple[Callable[[Path], None], Callable[[Path], None]]
"""Write the policy, and the algorithm, into a folder each; processes but the main one only help."""


class Position(NamedTuple):
    """Where a run stands: finished stages, and updates made in the current one."""

    stage: int = 0
    step: int = 0


class Found(NamedTuple):
    """A checkpoint to go on from."""

    state: Mapping[str, Any]
    files: CheckpointFiles


class Saves(Protocol):
    """A policy that can be written as a model."""

    def save(self, folder: Path) -> None:
        """Write a model that others can load."""
        ...


class RunRecord:
    """The run directory of a run in progress; only the main process writes."""

    def __init__(
        self,
        config: GRPOConfig,
        tasks: TaskDataLoader,
        *,
        is_main: bool,
        stream: TextIO | None = None,
    ) -> None:
        require_trackers(config)
        self.config = config
        self.run = RunDir(config.log_dir)
        self.matrix = RMatrix(domains=config.task_order)
        self.metrics = MetricsTracker(config)
        self._tasks = tasks
        self._is_main = is_main
        self._journal: Journal | None = None
        self._episodes: Journal | None = None
        self._times: Journal | None = None
        self._trackers: list[Tracker] = []
        self._progress = Progress(
            stream or sys.stdout,
            domains=config.task_order,
            steps_per_task=config.num_steps_per_task,
        )

    def begin(self) -> Found | None:
        """Start a new record, or go back to the last good checkpoint of an old one."""
        found = self._resume() if self.config.resume_from else None
        if self._is_main:
            if self.config.resume_from is None:
                self.run.create()
                self.run.write_config(self.config)
                self.run.write_environment(command=sys.argv, task_releases=self._tasks.releases)
            self._open(found)
        if found is not None:
            self.matrix = RMatrix.model_validate(found.state["r_matrix"])
        return found

    def _resume(self) -> Found | None:
        assert self.config.resume_from is not None
        point = resume_point(self.config.resume_from)
        for damage in point.damaged:
            logger.warning("checkpoint %s is passed over: %s", damage.path, damage.problem)
        self.run = point.run
        if self._is_main:
            self.run.reopen()
        if point.checkpoint is None:
            return None
        return Found(read_json(point.checkpoint.state), point.checkpoint)

    def _open(self, found: Found | None) -> None:
        self._journal = Journal(self.run.metrics_journal)
        self._episodes = Journal(self.run.trajectories_journal)
        self._times = Journal(self.run.times_journal)
        offsets = found.state["offsets"] if found else {"metrics": 0, "episodes": 0}
        self._journal.truncate(offsets["metrics"])
        self._episodes.truncate(offsets["episodes"])
        if found:
            position = Position(**found.state["position"])
            self.run.rewind(step=found.state["global_step"], stages=position.stage)
        self._trackers = open_trackers(self.config, self.run.root)
        self.metrics = MetricsTracker(self.config, journal=self._journal, trackers=self._trackers)
        if found:
            self.metrics.metrics.update(self.run.read_metrics())

    def log_step(self, position: Position, numbers: Mapping[str, float]) -> None:
        """One update."""
        if not self._is_main:
            return
        exact = self._exact(position, "train", numbers)
        self.metrics.log_step(position.stage, position.step, exact)
        self._progress.step(position.stage, position.step + 1, numbers)

    def keep(self, groups: Sequence[TrajectoryGroup], step: int) -> None:
        """The episodes of one update."""
        if self._episodes is None:
            return
        for group in groups:
            pairs = zip(group.trajectories, group.rewards, strict=True)
            for trajectory, reward in pairs:
                # The task is found again by its id, and wall time is nobody's to reproduce.
                record = trajectory.model_dump(mode="json", exclude={"task", "duration_s"})
                known = {"step": step, "domain": group.task.domain, "task_id": group.task.id}
                self._episodes.append(known | record | {"reward": reward.model_dump(mode="json")})

    def log_evaluation(
        self,
        position: Position,
        domain: str,
        cell: Cell,
        effort: Mapping[str, float],
        **place: str,
    ) -> None:
        """A measurement within a stage, and what it took."""
        if self._is_main:
            numbers = {**cell.numbers(), **place, **self._exact(position, "eval", effort)}
            self.metrics.log_evaluation(position.stage, position.step, domain, numbers)
            self._progress.evaluation(position.stage, domain, cell.numbers())

    def log_cell(
        self, position: Position, place: tuple[str, str], cell: Cell, effort: Mapping[str, float]
    ) -> None:
        """One measurement of the R-matrix: after which stage, of which domain."""
        after, domain = place
        self.matrix = self.matrix.with_cell(after, domain, cell)
        self.log_evaluation(position, domain, cell, effort, after=after)

    def log_row(self, position: Position, statistics: Mapping[str, Mapping[str, float]]) -> None:
        """What a finished row of the R-matrix says about transfer."""
        if not self._is_main:
            return
        rows = self.matrix.scores()
        learned = self.config.task_order[: len(rows) - 1]
        scores = {**continual_scores(rows), **curve_scores(self.metrics.metrics, learned)}
        known = {name: value for name, value in scores.items() if value is not None}
        # Row 0 stands at the start: wandb drops what comes after a later step.
        self.metrics.log_transfer(position.stage, known, step=position.step)
        self.metrics.log_buffer(position.stage, position.step, statistics)

    def has_row(self, after: str) -> bool:
        """Whether all domains were measured after a stage."""
        cells = [self.matrix.cell(after, domain) for domain in self.config.task_order]
        return all(cell is not None for cell in cells)

    def is_due(self, position: Position) -> bool:
        """Whether a checkpoint is to be saved here."""
        last = position.step == self.config.num_steps_per_task
        return last or position.step % self.config.logging.save_interval == 0

    def save(
        self, step: int, state: Mapping[str, Any], parts: Parts, buffer: TrajectoryBuffer
    ) -> None:
        """A checkpoint from which the run goes on exactly; every process takes part."""
        save_policy, save_algorithm = parts
        if not self._is_main:
            save_policy(self.run.checkpoints_dir)
            save_algorithm(self.run.checkpoints_dir)
            return
        assert self._journal is not None
        assert self._episodes is not None
        offsets = {"metrics": self._journal.offset(), "episodes": self._episodes.offset()}
        whole = {
            **state,
            "global_step": step,
            "offsets": offsets,
            "r_matrix": self.matrix.to_json(),
        }

        def fill(files: CheckpointFiles) -> None:
            files.policy_dir.mkdir()
            save_policy(files.policy_dir)
            files.algorithm_dir.mkdir()
            save_algorithm(files.algorithm_dir)
            buffer.save(files.trajectories)
            files.write_config(self.config)
            write_json(files.state, whole)

        self.run.save_step(step, fill, keep=self.config.logging.keep_checkpoints)

    def close_stage(self, stage: int, policy: Saves, buffer: TrajectoryBuffer) -> None:
        """What a stage learned, as a model others can load."""

        def fill(files: CheckpointFiles) -> None:
            policy.save(files.model_dir)
            buffer.save(files.trajectories)
            files.write_config(self.config)

        if self._is_main:
            self.run.save_stage(stage, fill)
            self._write_summaries()
        else:
            policy.save(self.run.root)

    def finish(self) -> dict[str, Any]:
        """Write the files people read, and say how it ended."""
        if self._is_main:
            self.matrix = self.matrix.model_copy(update={"facts": self._facts()})
            self._write_summaries()
        scores = continual_scores(self.matrix.scores())
        return {**self.metrics.get_summary(), **scores, "run": str(self.run.root)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for tracker in self._trackers:
            tracker.close()
        for journal in (self._journal, self._episodes, self._times):
            if journal is not None:
                journal.close()
        self._progress.close()

    def _exact(
        self, position: Position, kind: str, numbers: Mapping[str, float]
    ) -> dict[str, float]:
        """The numbers without the clock's, which are written down apart."""
        assert self._times is not None
        times = {name: value for name, value in numbers.items() if name in TIMES}
        self._times.append({"kind": kind, **position._asdict(), **times})
        return {name: value for name, value in numbers.items() if name not in TIMES}

    def _write_summaries(self) -> None:
        self.metrics.save(self.run.metrics)
        write_json(self.run.r_matrix, self.matrix.to_json())

    def _facts(self) -> dict[str, DomainFacts]:
        facts: dict[str, DomainFacts] = {}
        for name in self.config.task_order:
            tasks = self._tasks.evaluation_tasks(name)
            audits = [audit_task(self._tasks.domains[name], task) for task in tasks]
            criteria = [task.evaluation_criteria for task in tasks]
            bases = {part for found in criteria if found for part in found.reward_basis}
            facts[name] = DomainFacts(
                idle=sum(audit.idle for audit in audits) / len(audits),
                transfer=sum(audit.transfer for audit in audits) / len(audits),
                basis=tuple(sorted(bases)),
            )
        return facts
