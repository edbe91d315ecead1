"""Scored episodes as JSON lines, for the run directory and for other engines."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from grpo_cl.errors import TaskDataError
from grpo_cl.rewards import RewardOracle, ScoredTrajectory
from grpo_cl.storage.journal import Journal
from grpo_cl.types import Reward, Task, Trajectory

FOLDER_VARIABLE = "GRPO_CL_ROLLOUTS"
"""The variable that names the directory for episodes played in other engines."""


def episode_line(trajectory: Trajectory, reward: Reward) -> dict[str, Any]:
    """A scored episode as one JSON line.

    The task is looked up by its id. Wall time is left out: two runs of one seed write equal lines.
    """
    task = {"domain": trajectory.task.domain, "task_id": trajectory.task.id}
    episode = trajectory.model_dump(mode="json", exclude={"task", "duration_s"})
    return task | episode | {"reward": reward.model_dump(mode="json")}


def self_contained_line(trajectory: Trajectory, reward: Reward) -> dict[str, Any]:
    """A scored episode with its task, which may be none of the installed tasks."""
    task = trajectory.task.model_dump(mode="json", exclude_none=True)
    return episode_line(trajectory, reward) | {"task": task}


class RecordedEpisode(NamedTuple):
    """An episode as a file has it."""

    trajectory: Trajectory
    reward: Reward | None
    """None if the file has none."""
    has_checks: bool = True
    """Whether the reward has its basis and checks, or only its value and components."""

    def scored(self, oracle: RewardOracle) -> ScoredTrajectory:
        """The episode with its whole reward, computed if it is not recorded."""
        if self.reward is None or not self.has_checks:
            return ScoredTrajectory(self.trajectory, oracle.score(self.trajectory))
        return ScoredTrajectory(self.trajectory, self.reward)


def recorded_episode(line: Mapping[str, Any], task: Task) -> RecordedEpisode:
    """Read a line of ``episode_line``."""
    fields = {name: line[name] for name in Trajectory.model_fields if name in line}
    given = line.get("reward")
    try:
        trajectory = Trajectory.model_validate(fields | {"task": task})
        reward = Reward.model_validate(given) if isinstance(given, Mapping) else None
    except ValidationError as error:
        raise TaskDataError(f"not an episode of task {task.id!r}: {error}") from error
    return RecordedEpisode(trajectory, reward)


def read_episode(line: Mapping[str, Any], task: Task, oracle: RewardOracle) -> ScoredTrajectory:
    """Read a line of ``episode_line``; a missing reward is computed."""
    return recorded_episode(line, task).scored(oracle)


class EpisodeLog:
    """Episodes of one process; another engine may have many processes."""

    def __init__(self, folder: Path) -> None:
        self._journal = Journal(folder / f"episodes_{os.uname().nodename}_{os.getpid()}.jsonl")

    def add(self, trajectory: Trajectory, reward: Reward) -> None:
        """Append one episode; its time orders the lines of several processes."""
        times = {"duration_s": trajectory.duration_s, "time": time.time()}
        self._journal.append(self_contained_line(trajectory, reward) | times)

    def close(self) -> None:
        """Close the file."""
        self._journal.close()


def episode_log(variables: Mapping[str, str]) -> EpisodeLog | None:
    """The log in the directory that ``$GRPO_CL_ROLLOUTS`` names, if it is set."""
    folder = variables.get(FOLDER_VARIABLE)
    return EpisodeLog(Path(folder)) if folder else None
