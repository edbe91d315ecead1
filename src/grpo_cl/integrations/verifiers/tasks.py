"""A verifiers taskset with the tasks of our domains; rewards come from the reward oracle."""
# pyright: basic, reportMissingImports=false
# The engine is installed in a separate environment, so its types are unmetrics here.

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf
from pydantic import Field

from grpo_cl.config import GRPOConfig
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.integrations.episode_context import episode_config, require_hosted_models
from grpo_cl.integrations.rows import SOLO, SOLO_PROMPT
from grpo_cl.rollout import system_prompt
from grpo_cl.types import Task

TRAIN = "train"


class EpisodeData(vf.TaskData):
    """One task of a domain in serializable form."""

    domain: str
    task: str
    """The whole task as JSON."""
    settings: dict[str, Any]
    """Settings of the episode: sections of a run's config."""


class EpisodeState(vf.State):
    """The result of the episode."""

    reward: float | None = None
    """The training reward."""
    success: float = 0.0
    termination: str = ""
    tool_accuracy: float | None = None


class EpisodeTask(vf.Task[EpisodeData, EpisodeState]):
    """One task of a domain; the harness runs and scores its episode."""

    @property
    def key(self) -> str:
        """An identifier that does not depend on the task's position in the taskset."""
        return f"{self.data.domain}/{self.data.id}"

    @vf.reward
    async def reward(self, trace: vf.Trace) -> float:
        """The training reward of a local run."""
        return trace.state.reward or 0.0

    @vf.metric
    async def episode(self, trace: vf.Trace) -> dict[str, float]:
        """Task success and tool accuracy."""
        metrics = {"success": trace.state.success}
        if trace.state.tool_accuracy is not None:
            metrics["tool_accuracy"] = trace.state.tool_accuracy
        return metrics


class EpisodeTasksetConfig(vf.TasksetConfig):
    """``--env.taskset.*``: tasks and episode settings."""

    domains: list[str] = Field(default_factory=lambda: ["retail"])
    split: str = TRAIN
    """``train``, or the name of an evaluation split."""
    max_tasks: int | None = None
    """Limit per domain."""
    user_strategy: str | None = None
    """solo, scripted, llm, react, verify or reflection."""
    user_model: str | None = None
    """The user's model as PROVIDER/MODEL."""
    user_base_url: str | None = None
    judge_model: str | None = None
    max_turns: int | None = None
    """Limit on the agent's replies."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Further sections of a run's config, see docs/training.md."""

    @property
    def episodes(self) -> dict[str, Any]:
        """Options for ``episode_config``."""
        names = ("user_strategy", "user_model", "user_base_url", "judge_model", "max_turns")
        options = self.model_dump(include=set(names), exclude_none=True)
        return {**self.settings, **options}


class EpisodeTaskset(vf.Taskset[EpisodeTask, EpisodeTasksetConfig]):
    """The tasks of several domains, domain by domain."""

    def load(self) -> Iterator[EpisodeTask]:
        """Every task of the split."""
        limits = {"max_tasks_per_domain": self.config.max_tasks}
        order = {"task_order": self.config.domains}
        config = episode_config({**self.config.episodes, **order, **limits})
        require_hosted_models(config)
        loader = TaskDataLoader(config)
        for name in self.config.domains:
            tasks = (
                loader.train_tasks(name)
                if self.config.split == TRAIN
                else loader.evaluation_tasks(name, self.config.split)[: self.config.max_tasks]
            )
            for task in tasks:
                yield EpisodeTask(self._data(loader, config, task), self.config.task)

    def _data(self, loader: TaskDataLoader, config: GRPOConfig, task: Task) -> EpisodeData:
        solo, compact = config.rollout.user == SOLO, config.rollout.prompt == "compact"
        domain = loader.domains[task.domain]
        return EpisodeData(
            id=task.id,
            name=f"{task.domain}/{task.id}",
            # verifiers requires a prompt; the harness builds the actual messages.
            prompt=SOLO_PROMPT,
            system_prompt=system_prompt(domain, task, solo=solo, compact=compact),
            domain=task.domain,
            task=task.model_dump_json(exclude_none=True),
            settings=self.config.episodes,
        )
