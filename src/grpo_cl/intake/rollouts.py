"""Episodes of an engine's run, from the files that the adapters or the engine wrote.

A line is an episode of ours, as ``episodes.EpisodeLog`` and a run's own journal have it, or an
engine's own sample, of which only the score is used: verl's ``rollout_data_dir`` has ``score`` and
``step``, AReaL's dumps have ``reward`` in files under a folder of the step's number.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from grpo_cl.episodes import read_episode
from grpo_cl.errors import TaskDataError
from grpo_cl.rewards import RewardOracle, Scored
from grpo_cl.rundir import read_journal
from grpo_cl.tasks import TaskDataLoader
from grpo_cl.types import Task, TrajectoryGroup

_SCORES = ("score", "reward")


class Played(NamedTuple):
    """What one step of a stage played."""

    groups: list[TrajectoryGroup]
    """Whole episodes, by task."""
    scores: list[float]
    """Rewards of samples that are not whole episodes."""


class _Line(NamedTuple):
    """One line of a file, with where it was found."""

    record: Mapping[str, Any]
    where: str
    step: int | None


class Episodes:
    """Reads the episodes of a run; rewards that are not told are computed."""

    def __init__(self, tasks: TaskDataLoader, oracle: RewardOracle) -> None:
        self._tasks = tasks
        self._oracle = oracle

    def read(
        self, folder: Path, schedule: Sequence[Mapping[str, Any]], *, samples: int
    ) -> list[Played]:
        """What each step played, in order; steps that left nothing are left out.

        A line that names no step belongs to where ``schedule`` has its task: its first ``samples``
        plays to the first step that has it, and so on. Where there are whole episodes, samples are
        passed over.
        """
        lines = sorted(_lines(folder), key=lambda line: line.record.get("time", 0.0))
        # An engine's samples are the same episodes once more, told in less.
        lines = [line for line in lines if "messages" in line.record] or lines
        planned = _Planned(schedule, samples)
        steps: defaultdict[int, list[_Line]] = defaultdict(list)
        for line in lines:
            found = planned.step(line.record) if line.step is None else line.step
            steps[found].append(line)
        return [self._played(steps[step]) for step in sorted(steps)]

    def _played(self, lines: Iterable[_Line]) -> Played:
        groups: defaultdict[tuple[str, str], list[Scored]] = defaultdict(list)
        scores: list[float] = []
        for line in lines:
            if "messages" in line.record:
                scored = self._episode(line)
                task = scored.trajectory.task
                groups[task.domain, task.id].append(scored)
            else:
                scores.append(_score(line))
        return Played([_group(episodes) for episodes in groups.values()], scores)

    def _episode(self, line: _Line) -> Scored:
        try:
            return read_episode(line.record, self._task(line.record), self._oracle)
        except TaskDataError as error:
            raise TaskDataError(f"{line.where}: {error}") from error

    def _task(self, record: Mapping[str, Any]) -> Task:
        domain, task_id = record.get("domain"), record.get("task_id")
        if domain not in self._tasks.domains or not isinstance(task_id, str):
            known = ", ".join(self._tasks.domains)
            raise TaskDataError(
                f"task {task_id!r} of domain {domain!r}; an episode names a task of {known}"
            )
        return self._tasks.domains[domain].task(task_id)


class _Planned:
    """The steps at which each task is due, used up play by play."""

    def __init__(self, schedule: Sequence[Mapping[str, Any]], samples: int) -> None:
        self._samples = samples
        self._seen: Counter[tuple[Any, Any]] = Counter()
        self._due: defaultdict[tuple[Any, Any], list[int]] = defaultdict(list)
        for entry in schedule:
            self._due[entry["domain"], entry["task_id"]].append(entry["step"])

    def step(self, record: Mapping[str, Any]) -> int:
        """The step of the next play of a task; of one that is not due any more, the last."""
        key = record.get("domain"), record.get("task_id")
        due = self._due.get(key, [0])
        place = self._seen[key] // self._samples
        self._seen[key] += 1
        return due[min(place, len(due) - 1)]


def _lines(folder: Path) -> Iterable[_Line]:
    for path in sorted(folder.rglob("*.jsonl")):
        for number, record in enumerate(read_journal(path), 1):
            step = record.get("step", None if "messages" in record else _named_step(path, folder))
            yield _Line(record, f"{path}, line {number}", step)


def _named_step(path: Path, folder: Path) -> int | None:
    """The number that a folder, or else the file itself, is called."""
    for part in path.relative_to(folder).with_suffix("").parts:
        if found := re.fullmatch(r"(?:global_)?(?:step_)?(\d+)", part):
            return int(found[1])
    return None


def _score(line: _Line) -> float:
    for name in _SCORES:
        if isinstance(value := line.record.get(name), int | float):
            return float(value)
    raise TaskDataError(
        f"{line.where} is neither an episode with messages nor a sample with a score; "
        f"it has {', '.join(line.record)}"
    )


def _group(episodes: Sequence[Scored]) -> TrajectoryGroup:
    rewards = tuple(reward for _, reward in episodes)
    return TrajectoryGroup(
        task=episodes[0][0].task,
        trajectories=tuple(trajectory for trajectory, _ in episodes),
        rewards=rewards,
        training_rewards=tuple(reward.value for reward in rewards),
    )
