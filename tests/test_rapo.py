import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path
from typing import Any

import pytest

from grpo_cl.advantages import group_advantages
from grpo_cl.algorithms.rapo import RapoCL, mean_excess
from grpo_cl.buffer import TrajectoryBuffer
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.policy.continual.passes import trace_logprobs
from grpo_cl.policy.learner import Learner
from grpo_cl.policy.model import PolicyModel
from grpo_cl.policy.ranks import Ranks
from grpo_cl.tasks import TaskDataLoader
from grpo_cl.types import TrajectoryGroup
from tiny_learners import group, random_batch, random_traces, settings, tiny_policy


@dataclass
class Runtime:
    """A policy and its learner, as a run has them."""

    model: PolicyModel
    learner: Learner
    is_main: bool = True


@dataclass
class Stage:
    """What the algorithm sees of a run."""

    config: GRPOConfig
    tasks: TaskDataLoader
    trajectory_buffer: TrajectoryBuffer
    policy: Any


def stage(**changes: Any) -> Stage:
    config = settings(task_order=("toy_left", "toy_right"), **changes)
    model = tiny_policy(config)
    runtime = Runtime(model, Learner(model, config, Ranks()))
    return Stage(config, TaskDataLoader(config), TrajectoryBuffer(config), runtime)


def bound(view: Stage, **options: Any) -> RapoCL:
    algorithm = RapoCL(**options)
    algorithm.check(view.config)
    algorithm.bind(view)
    return algorithm


def shaped(
    algorithm: RapoCL, given: TrajectoryGroup, rewards: Sequence[float] = (1.0,) * 5
) -> list[float]:
    group_with = given.model_copy(update={"training_rewards": tuple(rewards)})
    algorithm.augment_rollouts([group_with], "toy_right")
    return list(algorithm.shape_rewards(group_with, rewards))


def moved(view: Stage) -> TrajectoryGroup:
    """Learn something, and give back episodes that are likelier and less likely now."""
    view.policy.learner.update(*random_batch(5, seed=3))
    return group(*random_traces(5))


def test_only_tokens_that_became_likelier_count_as_drift() -> None:
    assert mean_excess([-1.0, -2.0, -3.0, -0.5], [-1.5, -1.0, -3.0, -0.75]) == (0.5 + 0.25) / 4
    assert mean_excess([-1.0], [-1.0]) == 0.0


def test_the_first_domain_has_no_retention_reward() -> None:
    view = stage()
    algorithm = bound(view)
    assert shaped(algorithm, moved(view)) == [1.0] * 5
    assert algorithm.telemetry() == {}


def test_a_policy_that_did_not_move_is_rewarded_alike_for_everything() -> None:
    view = stage()
    algorithm = bound(view)
    algorithm.post_task_hook(view, "toy_left")
    assert shaped(algorithm, group(*random_traces(5))) == [1.5] * 5
    assert algorithm.telemetry() == {"cl/drift": 0.0, "cl/retention": 0.5}


def test_of_equal_rewards_the_episode_that_drifted_less_has_the_larger_advantage() -> None:
    view = stage()
    algorithm = bound(view, strength=0.5, alpha=20.0)
    algorithm.post_task_hook(view, "toy_left")
    traces = random_traces(5)
    before = trace_logprobs(view.policy.learner, traces)
    given = moved(view)
    now = trace_logprobs(view.policy.learner, traces)
    drifts = [mean_excess(*rows) for rows in zip(now, before, strict=True)]
    assert len(set(drifts)) == 5
    rewards = shaped(algorithm, given)
    assert rewards == pytest.approx([1 + 0.5 * exp(-20 * drift) for drift in drifts])
    advantages = group_advantages(rewards, "mean")
    by_drift = sorted(range(5), key=drifts.__getitem__)
    by_advantage = sorted(range(5), key=advantages.__getitem__, reverse=True)
    assert by_drift == by_advantage
    assert algorithm.telemetry()["cl/drift"] == pytest.approx(sum(drifts) / 5)


def test_measuring_drift_leaves_the_policy_as_it_is() -> None:
    view = stage()
    algorithm = bound(view)
    algorithm.post_task_hook(view, "toy_left")
    given = moved(view)
    fingerprint = view.policy.model.fingerprint()
    shaped(algorithm, given)
    assert view.policy.model.fingerprint() == fingerprint


def test_strength_zero_changes_nothing() -> None:
    view = stage()
    algorithm = bound(view, strength=0.0)
    algorithm.post_task_hook(view, "toy_left")
    rewards = (0.0, 1.0, 0.5, 1.0, 0.25)
    assert shaped(algorithm, moved(view), rewards) == list(rewards)
    assert algorithm.telemetry() == {}


def test_an_episode_without_tokens_of_the_policy_did_not_drift() -> None:
    view = stage()
    algorithm = bound(view)
    algorithm.post_task_hook(view, "toy_left")
    view.policy.learner.update(*random_batch(5, seed=3))
    rewards = shaped(algorithm, group(None, *random_traces(2)), (0.0, 0.0, 0.0))
    assert rewards[0] == 0.5
    assert rewards[0] > max(rewards[1:])


def test_the_spread_of_rewards_is_remembered_over_steps() -> None:
    view = stage()
    algorithm = bound(view, strength=0.5, is_normalised=True, decay=0.9)
    given = group(*random_traces(4))
    assert shaped(algorithm, given, (0.0, 1.0, 0.0, 1.0)) == [0.0, 1.0, 0.0, 1.0]
    algorithm.post_task_hook(view, "toy_left")
    # No drift adds 1/2 to all. Standard deviations 1/2 and 0; then 0.9 · 0.5 + 0.1 · 0 = 0.45.
    assert shaped(algorithm, given, (0.0, 1.0, 0.0, 1.0)) == [1.0, 3.0, 1.0, 3.0]
    assert shaped(algorithm, given, (1.0,) * 4) == pytest.approx([1.5 / 0.45] * 4)
    again = bound(view, is_normalised=True)
    again.load_state_dict(json.loads(json.dumps(algorithm.state_dict())))
    assert again.telemetry() == {"cl/reward_spread": pytest.approx(0.45)}


def test_the_spread_begins_with_that_of_the_first_stage() -> None:
    view = stage()
    algorithm = bound(view, is_normalised=True, decay=0.9)
    played = group(*random_traces(4)).model_copy(update={"training_rewards": (0.0, 1.0, 0.0, 1.0)})
    view.trajectory_buffer.add(played, 0)
    algorithm.post_task_hook(view, played.task.domain)
    assert shaped(algorithm, played, (1.0,) * 4) == pytest.approx([1.5 / 0.45] * 4)


def test_the_previous_policy_survives_a_resume_bit_for_bit(tmp_path: Path) -> None:
    view = stage()
    first, second = bound(view), bound(view)
    first.post_task_hook(view, "toy_left")
    given = moved(view)
    first.save_state(tmp_path)
    second.load_state(tmp_path)
    assert shaped(second, given) == shaped(first, given)


def test_two_ways_of_dividing_by_a_spread_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"undoes cl_options\.is_normalised"):
        bound(stage(loss={"advantage": "std"}), is_normalised=True)
