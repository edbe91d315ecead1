"""Evaluate a model behind an API as the agent: the same episodes and rewards."""

from collections.abc import Sequence
from typing import NoReturn, Self

from grpo_cl.config import GRPOConfig
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.errors import ConfigError
from grpo_cl.llm import GenerationParams
from grpo_cl.metrics.rmatrix import Cell
from grpo_cl.rewards import ScoredTrajectory
from grpo_cl.rollout import run_episodes
from grpo_cl.rollout.llm_actor import HostedActor
from grpo_cl.trainer.auxiliary_models import AuxiliaryModels
from grpo_cl.trainer.evaluate import evaluate
from grpo_cl.types import Task


class HostedEvaluation:
    """A hosted model on the evaluation tasks of a run's domains, without training."""

    def __init__(self, config: GRPOConfig, model: str, *, base_url: str | None = None) -> None:
        self.config = config
        self.auxiliary_models = AuxiliaryModels(config)
        temperature = config.temperature if config.evaluation.is_sampled else 0.0
        params = GenerationParams(temperature, config.max_new_tokens)
        self._actor = HostedActor(self.auxiliary_models.open(model, params, base_url=base_url))
        self._users = self.auxiliary_models.users(_NoPolicy())
        self._tasks = TaskDataLoader(config)
        for domain in config.task_order:
            self._tasks.require_evaluation_tasks(domain)
        self._oracle = self.auxiliary_models.oracle(self._tasks.domains)

    def evaluate(self, domain: str) -> Cell:
        """Evaluate the model on a domain."""
        tasks = self._tasks.evaluation_tasks(domain)
        return evaluate(self._play, tasks, self.config)

    def _play(self, tasks: Sequence[Task], seeds: Sequence[int]) -> list[ScoredTrajectory]:
        played = run_episodes(
            self._actor,
            self._tasks.domains,
            tasks,
            self.config.rollout,
            seeds=seeds,
            models=self._users,
        )
        return self._oracle.score_all([self._actor.with_calls(episode) for episode in played])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.auxiliary_models.close()


class _NoPolicy:
    """In place of a policy: with a hosted agent there is none to simulate the user."""

    def actor(self, *, temperature: float) -> NoReturn:
        del temperature
        raise ConfigError(
            "user.model=policy needs a policy, and here a hosted model is evaluated; "
            "name the user's model as PROVIDER/MODEL"
        )

    frozen_actor = actor
