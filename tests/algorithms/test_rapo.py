import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path
from typing import Any

import pytest

from grpo_cl.algorithms.rapo import RapoCL, mean_logprob_increase
from grpo_cl.config import GRPOConfig
from grpo_cl.envs.tasks import TaskDataLoader
from grpo_cl.errors import ConfigError
from grpo_cl.policy.continual.passes import trace_logprobs
from grpo_cl.policy.learner.learner import Learner
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.model.policy_model import PolicyModel
from grpo_cl.rewards.advantages import group_advantages
from grpo_cl.runs.trajectory_buffer import TrajectoryBuffer
from grpo_cl.types import TrajectoryGroup
from tiny_learners import group, random_batch, random_traces, settings, tiny_policy


@dataclass
class FakeRuntime:
    """A policy and its learner, as a run has them."""

    model: PolicyModel
    learner: Learner
    is_main: bool = True


@dataclass
class FakeTrainer:
    """What the algorithm sees of a run."""

    config: GRPOConfig
    tasks: TaskDataLoader
    trajectory_buffer: TrajectoryBuffer
    policy: Any


def fake_trainer(**changes: Any) -> FakeTrainer:
    config = settings(task_order=("toy_left", "toy_right"), **changes)
    model = tiny_policy(config)
    runtime = FakeRuntime(model, Learner(model, config, DistributedContext()))
    return FakeTrainer(config, TaskDataLoader(config), TrajectoryBuffer(config), runtime)


def bind_algorithm(trainer: FakeTrainer, **options: Any) -> RapoCL:
    algorithm = RapoCL(**options)
    algorithm.check(trainer.config)
    algorithm.bind(trainer)
    return algorithm


def shape(
    algorithm: RapoCL, episodes: TrajectoryGroup, rewards: Sequence[float] = (1.0,) * 5
) -> list[float]:
    group_with = episodes.model_copy(update={"training_rewards": tuple(rewards)})
    algorithm.augment_rollouts([group_with], "toy_right")
    return list(algorithm.shape_rewards(group_with, rewards))


def episodes_after_update(trainer: FakeTrainer) -> TrajectoryGroup:
    """Update the policy, and return episodes whose log-probs went up or down."""
    trainer.policy.learner.update(*random_batch(5, seed=3))
    return group(*random_traces(5))


def test_drift_counts_only_increases_of_logprobs() -> None:
    assert (
        mean_logprob_increase([-1.0, -2.0, -3.0, -0.5], [-1.5, -1.0, -3.0, -0.75])
        == (0.5 + 0.25) / 4
    )
    assert mean_logprob_increase([-1.0], [-1.0]) == 0.0


def test_the_first_domain_has_no_retention_reward() -> None:
    trainer = fake_trainer()
    algorithm = bind_algorithm(trainer)
    assert shape(algorithm, episodes_after_update(trainer)) == [1.0] * 5
    assert algorithm.telemetry() == {}


def test_an_unchanged_policy_gets_the_full_retention_reward() -> None:
    trainer = fake_trainer()
    algorithm = bind_algorithm(trainer)
    algorithm.post_task_hook(trainer, "toy_left")
    assert shape(algorithm, group(*random_traces(5))) == [1.5] * 5
    assert algorithm.telemetry() == {"cl/drift": 0.0, "cl/retention": 0.5}


def test_at_equal_rewards_less_drift_means_a_larger_advantage() -> None:
    trainer = fake_trainer()
    algorithm = bind_algorithm(trainer, strength=0.5, alpha=20.0)
    algorithm.post_task_hook(trainer, "toy_left")
    traces = random_traces(5)
    before = trace_logprobs(trainer.policy.learner, traces)
    episodes = episodes_after_update(trainer)
    now = trace_logprobs(trainer.policy.learner, traces)
    drifts = [mean_logprob_increase(*rows) for rows in zip(now, before, strict=True)]
    assert len(set(drifts)) == 5
    rewards = shape(algorithm, episodes)
    assert rewards == pytest.approx([1 + 0.5 * exp(-20 * drift) for drift in drifts])
    advantages = group_advantages(rewards, "mean")
    by_drift = sorted(range(5), key=drifts.__getitem__)
    by_advantage = sorted(range(5), key=advantages.__getitem__, reverse=True)
    assert by_drift == by_advantage
    assert algorithm.telemetry()["cl/drift"] == pytest.approx(sum(drifts) / 5)


def test_measuring_drift_leaves_the_policy_unchanged() -> None:
    trainer = fake_trainer()
    algorithm = bind_algorithm(trainer)
    algorithm.post_task_hook(trainer, "toy_left")
    episodes = episodes_after_update(trainer)
    fingerprint = trainer.policy.model.fingerprint()
    shape(algorithm, episodes)
    assert trainer.policy.model.fingerprint() == fingerprint


def test_strength_zero_changes_nothing() -> None:
    trainer = fake_trainer()
    algorithm = bind_algorithm(trainer, strength=0.0)
    algorithm.post_task_hook(trainer, "toy_left")
    rewards = (0.0, 1.0, 0.5, 1.0, 0.25)
    assert shape(algorithm, episodes_after_update(trainer), rewards) == list(rewards)
    assert algorithm.telemetry() == {}


def test_an_episode_without_tokens_of_the_policy_has_no_drift() -> None:
    trainer = fake_trainer()
    algorithm = bind_algorithm(trainer)
    algorithm.post_task_hook(trainer, "toy_left")
    trainer.policy.learner.update(*random_batch(5, seed=3))
    rewards = shape(algorithm, group(None, *random_traces(2)), (0.0, 0.0, 0.0))
    assert rewards[0] == 0.5
    assert rewards[0] > max(rewards[1:])


def test_the_standard_deviation_of_rewards_is_averaged_over_steps() -> None:
    trainer = fake_trainer()
    algorithm = bind_algorithm(trainer, strength=0.5, is_normalised=True, decay=0.9)
    episodes = group(*random_traces(4))
    assert shape(algorithm, episodes, (0.0, 1.0, 0.0, 1.0)) == [0.0, 1.0, 0.0, 1.0]
    algorithm.post_task_hook(trainer, "toy_left")
    # No drift adds 1/2 to all. Standard deviations 1/2 and 0; then 0.9 · 0.5 + 0.1 · 0 = 0.45.
    assert shape(algorithm, episodes, (0.0, 1.0, 0.0, 1.0)) == [1.0, 3.0, 1.0, 3.0]
    assert shape(algorithm, episodes, (1.0,) * 4) == pytest.approx([1.5 / 0.45] * 4)
    again = bind_algorithm(trainer, is_normalised=True)
    again.load_state_dict(json.loads(json.dumps(algorithm.state_dict())))
    assert again.telemetry() == {"cl/reward_spread": pytest.approx(0.45)}


def test_the_running_average_starts_with_the_first_stage() -> None:
    trainer = fake_trainer()
    algorithm = bind_algorithm(trainer, is_normalised=True, decay=0.9)
    played = group(*random_traces(4)).model_copy(update={"training_rewards": (0.0, 1.0, 0.0, 1.0)})
    trainer.trajectory_buffer.add(played, 0)
    algorithm.post_task_hook(trainer, played.task.domain)
    assert shape(algorithm, played, (1.0,) * 4) == pytest.approx([1.5 / 0.45] * 4)


def test_the_saved_old_policy_is_restored_bit_for_bit(tmp_path: Path) -> None:
    trainer = fake_trainer()
    first, second = bind_algorithm(trainer), bind_algorithm(trainer)
    first.post_task_hook(trainer, "toy_left")
    episodes = episodes_after_update(trainer)
    first.save_state(tmp_path)
    second.load_state(tmp_path)
    assert shape(second, episodes) == shape(first, episodes)


def test_normalisation_with_std_advantages_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"undoes cl_options\.is_normalised"):
        bind_algorithm(fake_trainer(loss={"advantage": "std"}), is_normalised=True)
