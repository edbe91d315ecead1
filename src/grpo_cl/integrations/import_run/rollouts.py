"""Reads the episodes of an engine's run from the JSON lines of our adapters or of the engine.

A line is a whole episode, in the format of ``runs.episodes.EpisodeLog``, or a sample in the
engine's own format, of which only the score is used: verl's ``rollout_data_dir`` has ``score`` and
``step``, AReaL's dumps have ``reward`` in a folder named by the step.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.errors import TaskDataError
from grpo_cl.rewards import RewardOracle, ScoredTrajectory
from grpo_cl.runs.episodes import read_episode
from grpo_cl.storage.journal import read_journal
from grpo_cl.types import Task, TrajectoryGroup

_SCORES = ("score", "reward")


class ImportedStep(NamedTuple):
    """The episodes of one training step."""

    groups: list[TrajectoryGroup]
    """Whole episodes, grouped by task."""
    scores: list[float]
    """Rewards of samples without messages."""


class _Line(NamedTuple):
    """One line of a file with its location."""

    record: Mapping[str, Any]
    location: str
    step: int | None


class EpisodeReader:
    """Reads the episodes of a run; missing rewards are computed by the oracle."""

    def __init__(self, tasks: TaskDataLoader, oracle: RewardOracle) -> None:
        self._tasks = tasks
        self._oracle = oracle

    def read(
        self, folder: Path, schedule: Sequence[Mapping[str, Any]], *, samples: int
    ) -> list[ImportedStep]:
        """The episodes of each step in order; steps without episodes are omitted.

        A line without a step is assigned by ``schedule``: the first ``samples`` episodes of a task
        belong to the first step that has the task, and so on. Samples are ignored if there are
        whole episodes.
        """
        lines = sorted(_lines(folder), key=lambda line: line.record.get("time", 0.0))
        # The engine's samples are the same episodes with less information.
        lines = [line for line in lines if "messages" in line.record] or lines
        scheduled = _ScheduledSteps(schedule, samples)
        steps: defaultdict[int, list[_Line]] = defaultdict(list)
        for line in lines:
            step = scheduled.next_step(line.record) if line.step is None else line.step
            steps[step].append(line)
        return [self._import_step(steps[step]) for step in sorted(steps)]

    def _import_step(self, lines: Iterable[_Line]) -> ImportedStep:
        groups: defaultdict[tuple[str, str], list[ScoredTrajectory]] = defaultdict(list)
        scores: list[float] = []
        for line in lines:
            if "messages" in line.record:
                scored = self._episode(line)
                task = scored.trajectory.task
                groups[task.domain, task.id].append(scored)
            else:
                scores.append(_score(line))
        return ImportedStep([_group(episodes) for episodes in groups.values()], scores)

    def _episode(self, line: _Line) -> ScoredTrajectory:
        try:
            return read_episode(line.record, self._task(line.record), self._oracle)
        except TaskDataError as error:
            raise TaskDataError(f"{line.location}: {error}") from error

    def _task(self, record: Mapping[str, Any]) -> Task:
        domain, task_id = record.get("domain"), record.get("task_id")
        if domain not in self._tasks.domains or not isinstance(task_id, str):
            known = ", ".join(self._tasks.domains)
            raise TaskDataError(
                f"unknown task {task_id!r} of domain {domain!r}; an episode names a task of {known}"
            )
        return self._tasks.domains[domain].task(task_id)


class _ScheduledSteps:
    """Assigns the episodes of each task to its scheduled steps in order."""

    def __init__(self, schedule: Sequence[Mapping[str, Any]], samples: int) -> None:
        self._samples = samples
        self._counts: Counter[tuple[Any, Any]] = Counter()
        self._steps: defaultdict[tuple[Any, Any], list[int]] = defaultdict(list)
        for entry in schedule:
            self._steps[entry["domain"], entry["task_id"]].append(entry["step"])

    def next_step(self, record: Mapping[str, Any]) -> int:
        """The step of the next episode of a task; surplus episodes belong to its last step."""
        key = record.get("domain"), record.get("task_id")
        steps = self._steps.get(key, [0])
        index = self._counts[key] // self._samples
        self._counts[key] += 1
        return steps[min(index, len(steps) - 1)]


def _lines(folder: Path) -> Iterable[_Line]:
    for path in sorted(folder.rglob("*.jsonl")):
        for number, record in enumerate(read_journal(path), 1):
            step = record.get("step", None if "messages" in record else _step_in_path(path, folder))
            yield _Line(record, f"{path}, line {number}", step)


def _step_in_path(path: Path, folder: Path) -> int | None:
    """The step number in the name of a folder or of the file."""
    for part in path.relative_to(folder).with_suffix("").parts:
        if match := re.fullmatch(r"(?:global_)?(?:step_)?(\d+)", part):
            return int(match[1])
    return None


def _score(line: _Line) -> float:
    for name in _SCORES:
        if isinstance(value := line.record.get(name), int | float):
            return float(value)
    raise TaskDataError(
        f"{line.location} is neither an episode with messages nor a sample with a score; "
        f"it has {', '.join(line.record)}"
    )


def _group(episodes: Sequence[ScoredTrajectory]) -> TrajectoryGroup:
    rewards = tuple(reward for _, reward in episodes)
    return TrajectoryGroup(
        task=episodes[0][0].task,
        trajectories=tuple(trajectory for trajectory, _ in episodes),
        rewards=rewards,
        training_rewards=tuple(reward.value for reward in rewards),
    )
