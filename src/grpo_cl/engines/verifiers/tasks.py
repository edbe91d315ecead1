"""The tasks of our domains as a taskset of verifiers; what a task scores is our oracle's to say."""
# pyright: basic, reportMissingImports=false
# The engine is in an environment of its own, so its classes are unknown here.

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf
from pydantic import Field

from grpo_cl.config import GRPOConfig
from grpo_cl.engines.venue import episode_config
from grpo_cl.rollout import system_prompt
from grpo_cl.rows import BEGIN, SOLO
from grpo_cl.tasks import TaskDataLoader
from grpo_cl.types import Task

TRAIN = "train"


class EpisodeData(vf.TaskData):
    """One task of a domain, as it goes over the wire."""

    domain: str
    task: str
    """The whole task as JSON."""
    settings: dict[str, Any]
    """How the episode is played: sections of a run's config."""


class EpisodeState(vf.State):
    """How the episode went."""

    reward: float | None = None
    """What to learn from."""
    success: float = 0.0
    termination: str = ""
    tool_accuracy: float | None = None


class EpisodeTask(vf.Task[EpisodeData, EpisodeState]):
    """One task of a domain; the harness has played and scored it."""

    @property
    def key(self) -> str:
        """The same wherever the task stands in the taskset."""
        return f"{self.data.domain}/{self.data.id}"

    @vf.reward
    async def reward(self, trace: vf.Trace) -> float:
        """What a local run would learn from."""
        return trace.state.reward or 0.0

    @vf.metric
    async def episode(self, trace: vf.Trace) -> dict[str, float]:
        """The parts of the score that are numbers."""
        known = {"success": trace.state.success}
        if trace.state.tool_accuracy is not None:
            known["tool_accuracy"] = trace.state.tool_accuracy
        return known


class EpisodeTasksetConfig(vf.TasksetConfig):
    """``--env.taskset.*``: which tasks, and how they are played."""

    domains: list[str] = Field(default_factory=lambda: ["retail"])
    split: str = TRAIN
    """``train``, or the name of another split: tasks to measure with."""
    max_tasks: int | None = None
    """Of each domain."""
    user_strategy: str | None = None
    """solo, scripted, llm, react, verify or reflection."""
    user_model: str | None = None
    """PROVIDER/MODEL that plays the user."""
    user_base_url: str | None = None
    judge_model: str | None = None
    max_turns: int | None = None
    """Replies of the agent."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Further sections of a run's config, as docs/training.md has them."""

    @property
    def episodes(self) -> dict[str, Any]:
        """What ``episode_config`` takes."""
        names = ("user_strategy", "user_model", "user_base_url", "judge_model", "max_turns")
        chosen = self.model_dump(include=set(names), exclude_none=True)
        return {**self.settings, **chosen}


class EpisodeTaskset(vf.Taskset[EpisodeTask, EpisodeTasksetConfig]):
    """The tasks of some domains, domain after domain."""

    def load(self) -> Iterator[EpisodeTask]:
        """Every task of the split."""
        limits = {"max_tasks_per_domain": self.config.max_tasks}
        order = {"task_order": self.config.domains}
        config = episode_config({**self.config.episodes, **order, **limits})
        loader = TaskDataLoader(config)
        for name in self.config.domains:
            found = (
                loader.train_tasks(name)
                if self.config.split == TRAIN
                else loader.evaluation_tasks(name, self.config.split)[: self.config.max_tasks]
            )
            for task in found:
                yield EpisodeTask(self._data(loader, config, task), self.config.task)

    def _data(self, loader: TaskDataLoader, config: GRPOConfig, task: Task) -> EpisodeData:
        solo, compact = config.rollout.user == SOLO, config.rollout.prompt == "compact"
        domain = loader.domains[task.domain]
        return EpisodeData(
            id=task.id,
            name=f"{task.domain}/{task.id}",
            # verifiers wants a prompt; what is really read is the harness's to make.
            prompt=BEGIN,
            system_prompt=system_prompt(domain, task, solo=solo, compact=compact),
            domain=task.domain,
            task=task.model_dump_json(exclude_none=True),
            settings=self.config.episodes,
        )
