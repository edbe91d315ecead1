"""Scored episodes as lines of JSON: what a run's journal holds and what adapters write."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from grpo_cl.errors import TaskDataError
from grpo_cl.rewards import RewardOracle, Scored
from grpo_cl.rundir import Journal
from grpo_cl.types import Reward, Task, Trajectory

FOLDER_VARIABLE = "GRPO_CL_ROLLOUTS"
"""Names the folder that episodes played for other engines are written to."""


def episode_line(trajectory: Trajectory, reward: Reward) -> dict[str, Any]:
    """An episode without its task, which is found again by its id."""
    place = {"domain": trajectory.task.domain, "task_id": trajectory.task.id}
    told = trajectory.model_dump(mode="json", exclude={"task"})
    return place | told | {"reward": reward.model_dump(mode="json")}


def read_episode(line: Mapping[str, Any], task: Task, oracle: RewardOracle) -> Scored:
    """What ``episode_line`` made; a reward that is not told is computed."""
    told = {name: line[name] for name in Trajectory.model_fields if name in line}
    try:
        trajectory = Trajectory.model_validate(told | {"task": task})
        if isinstance(given := line.get("reward"), Mapping):
            return Scored(trajectory, Reward.model_validate(given))
    except ValidationError as error:
        raise TaskDataError(f"no episode of task {task.id!r}: {error}") from error
    return Scored(trajectory, oracle.score(trajectory))


class EpisodeLog:
    """One file for each process that plays; an engine has many."""

    def __init__(self, folder: Path) -> None:
        self._journal = Journal(folder / f"episodes_{os.uname().nodename}_{os.getpid()}.jsonl")

    def add(self, trajectory: Trajectory, reward: Reward) -> None:
        """Write one episode; the time is what the lines of many processes are ordered by."""
        self._journal.append(episode_line(trajectory, reward) | {"time": time.time()})

    def close(self) -> None:
        """Give the file back."""
        self._journal.close()


def episode_log(variables: Mapping[str, str]) -> EpisodeLog | None:
    """The log that environment variables ask for, if they do."""
    folder = variables.get(FOLDER_VARIABLE)
    return EpisodeLog(Path(folder)) if folder else None
