"""Measure a model behind an API as the agent: the same episodes, the same oracle."""

from collections.abc import Sequence
from typing import NoReturn, Self

from grpo_cl.casting import HostedActor
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.evaluation import evaluate
from grpo_cl.metrics.rmatrix import Cell
from grpo_cl.models import Manner
from grpo_cl.rewards import RewardOracle
from grpo_cl.rollout import run_episodes
from grpo_cl.tasks import TaskDataLoader
from grpo_cl.trainer.cast import Cast
from grpo_cl.types import Task, Trajectory


class HostedEvaluation:
    """A hosted model on the evaluation tasks of a run's domains; nothing is learned."""

    def __init__(self, config: GRPOConfig, model: str, *, base_url: str | None = None) -> None:
        self.config = config
        self.cast = Cast(config)
        temperature = config.temperature if config.evaluation.is_sampled else 0.0
        manner = Manner(temperature, config.max_new_tokens)
        self._actor = HostedActor(self.cast.open(model, manner, base_url=base_url))
        self._users = self.cast.users(_NoPolicy())
        self._tasks = TaskDataLoader(config)
        self._oracle = RewardOracle(
            self._tasks.domains,
            basis=config.reward.basis,
            judge=self.cast.judge,
            memory=self.cast.memory,
        )

    def evaluate(self, domain: str) -> Cell:
        """What the model reaches in a domain."""
        tasks = self._tasks.evaluation_tasks(domain)
        return evaluate(self.play, tasks, self._oracle.score_all, self.config)

    def play(self, tasks: Sequence[Task], seeds: Sequence[int]) -> list[Trajectory]:
        """One episode of each task."""
        played = run_episodes(
            self._actor,
            self._tasks.domains,
            tasks,
            self.config.rollout,
            seeds=seeds,
            models=self._users,
        )
        return [self._actor.with_calls(trajectory) for trajectory in played]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.cast.close()


class _NoPolicy:
    """Stands where a policy would: a hosted agent has none that could play the user."""

    def actor(self, *, temperature: float) -> NoReturn:
        del temperature
        raise ConfigError(
            "user.model=policy needs a policy, and a hosted model is measured here; "
            "name the user's model as PROVIDER/MODEL"
        )

    frozen_actor = actor
