"""Episodes of baselines, hosted models or the policy on the ``memory`` domain, with intervals."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from statistics import fmean, variance
from typing import NamedTuple, Protocol

from grpo_cl.config import GRPOConfig
from grpo_cl.envs.memory.baselines import BASELINES, BaselinePolicy
from grpo_cl.envs.memory.instances import instance_of
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.llm import GenerationParams, ModelPool
from grpo_cl.metrics.statistics import (
    TASKS_COVERED,
    Interval,
    Sample,
    VarianceComponent,
    t_interval,
)
from grpo_cl.registry import pick
from grpo_cl.rollout import Actor, Scene, run_episodes
from grpo_cl.rollout.llm_actor import HostedActor
from grpo_cl.trainer.auxiliary_models import AuxiliaryModels
from grpo_cl.trainer.evaluate import episode_seed
from grpo_cl.types import Message, Reward, RewardType, Task, ToolCall, Trajectory, number_calls

DOMAIN = "memory"
COMPONENTS = {
    "r1": RewardType.ANSWERS,
    "r2": RewardType.CALLS,
    "r3": RewardType.COMPRESSION,
    "r4": RewardType.CONTENT,
}
TOTAL = "r_t"
"""The mean reward of the steps."""


class ActorChoice(NamedTuple):
    """A baseline or a hosted model; without both, the policy of the config."""

    baseline: str | None = None
    model: str | None = None
    base_url: str | None = None


class EpisodeRunner(Protocol):
    """Plays one episode of each task."""

    def __call__(self, tasks: Sequence[Task]) -> list[Trajectory]:
        """The trajectories, in the order of the tasks."""
        ...


class BaselineActor:
    """A baseline policy as an actor."""

    def __init__(self, name: str) -> None:
        self._policy = pick(BASELINES, name, "writer")

    def join(self, scene: Scene) -> "BaselineAgent":
        """The agent of one episode."""
        return BaselineAgent(scene, self._policy)


class BaselineAgent:
    """A baseline policy in one episode: one reply per chunk."""

    def __init__(self, scene: Scene, policy: BaselinePolicy) -> None:
        self._chunks = iter(instance_of(scene.task).chunks)
        self._policy = policy
        self._num_calls = 0

    async def act(self, messages: Sequence[Message]) -> Message:
        """The operations at the next chunk."""
        del messages
        operations = self._policy(next(self._chunks))
        calls = number_calls(
            [ToolCall(name=op.name, arguments=dict(op.arguments)) for op in operations],
            self._num_calls,
        )
        self._num_calls += len(calls)
        return Message(role="assistant", content=None if calls else "", tool_calls=calls or None)

    def trace(self) -> None:
        """None: a baseline has no tokens."""


@contextmanager
def episode_runner(config: GRPOConfig, choice: ActorChoice) -> Generator[EpisodeRunner]:
    """A runner with the chosen actor; models are closed on exit."""
    domains = TaskDataLoader(config).domains

    def play(actor: Actor, tasks: Sequence[Task]) -> list[Trajectory]:
        seeds = [episode_seed(config.seed, DOMAIN, task.id) for task in tasks]
        return run_episodes(actor, domains, tasks, config.rollout, seeds=seeds)

    if choice.baseline:
        baseline = BaselineActor(choice.baseline)
        yield lambda tasks: play(baseline, tasks)
    elif choice.model:
        params = GenerationParams(0.0, config.max_new_tokens)
        with ModelPool(config.models) as models:
            hosted = HostedActor(models.open(choice.model, params, base_url=choice.base_url))
            yield lambda tasks: [hosted.with_calls(episode) for episode in play(hosted, tasks)]
    else:
        from grpo_cl.policy.runtime import PolicyRuntime  # noqa: PLC0415  # torch is slow to import

        runtime = PolicyRuntime(config)
        actor = runtime.actor(temperature=0.0)
        runtime.sync_weights()
        with runtime.full_parameters():
            yield lambda tasks: runtime.map_over_ranks(
                len(tasks), lambda indices: play(actor, [tasks[index] for index in indices])
            )


def evaluation_tasks(config: GRPOConfig) -> list[Task]:
    """All tasks of the file in ``memory.path``, or generated test tasks."""
    loader = TaskDataLoader(config)
    if config.memory.path is None:
        return loader.evaluation_tasks(DOMAIN)
    return list(loader.domains[DOMAIN].tasks("base"))[: config.evaluation.max_tasks]


def score(config: GRPOConfig, trajectories: Sequence[Trajectory]) -> list[Reward]:
    """The reward of each trajectory."""
    models = AuxiliaryModels(config)
    try:
        oracle = models.oracle(TaskDataLoader(config).domains)
        return [scored.reward for scored in oracle.score_all(trajectories)]
    finally:
        models.close()


def intervals(rewards: Sequence[Reward]) -> dict[str, Interval]:
    """The mean of each reward component over instances, with its 95 % confidence interval."""
    values = {
        name: [reward.components.get(component, 0.0) for reward in rewards]
        for name, component in COMPONENTS.items()
    }
    values[TOTAL] = [
        fmean(step.value for step in reward.steps) if reward.steps else 0.0 for reward in rewards
    ]
    return {name: _interval(numbers) for name, numbers in values.items()}


def _interval(values: Sequence[float]) -> Interval:
    spread = variance(values) / len(values) if len(values) > 1 else 0.0
    component = VarianceComponent(spread, max(len(values) - 1, 1))
    sample = Sample(1, len(values), "t over instances", TASKS_COVERED)
    return t_interval(fmean(values), spread, [component], sample)
