from collections.abc import Callable

import pytest

from grpo_cl.config import GRPOConfig, LossConfig
from grpo_cl.envs import Domain
from grpo_cl.rewards.advantages import compute_advantages, has_signal
from grpo_cl.trainer.collect import Batch, summarize
from grpo_cl.types import (
    Reward,
    RewardType,
    Termination,
    TokenTrace,
    Trajectory,
    TrajectoryGroup,
)


def test_pass_rate_counts_successes_and_reward_mean_is_the_training_reward(
    domain: Callable[[str], Domain],
) -> None:
    task = domain("mock").task("create_task_1")
    trajectories = [
        Trajectory(task=task, messages=(), termination=termination)
        for termination in (*[Termination.AGENT_STOP] * 4, Termination.INFRASTRUCTURE_ERROR)
    ]
    basis = (RewardType.DB,)
    values = (1.0, 1 - 1e-9, 0.0, 0.5, 1.0)  # a product of floats may be a little less than 1
    rewards = [Reward(value=value, basis=basis, basis_name="tau2") for value in values]
    group = TrajectoryGroup(
        task=task,
        trajectories=tuple(trajectories),
        rewards=tuple(rewards),
        training_rewards=(1.0, 1.0, 0.75, 0.25, 1.0),
    )
    numbers = summarize(Batch([group], 0), num_flat=0)
    assert (numbers["pass_rate"], numbers["reward_mean"]) == (0.5, 0.75)
    assert numbers["infrastructure_errors"] == 1.0
    assert "tool_accuracy" not in numbers  # no task here has gold actions to compare with


def test_solutions_with_fewer_turns_have_an_advantage_when_rewards_are_discounted(
    domain: Callable[[str], Domain],
) -> None:
    task = domain("mock").task("create_task_1")
    traces = [
        TokenTrace(
            ids=(0,) * turns,
            mask=(True,) * turns,
            logprobs=(0.0,) * turns,
            turns=tuple((turn, turn + 1) for turn in range(turns)),
        )
        for turns in (1, 2)
    ]
    termination = Termination.AGENT_STOP
    group = TrajectoryGroup(
        task=task,
        trajectories=tuple(
            Trajectory(task=task, messages=(), termination=termination, tokens=trace)
            for trace in traces
        ),
        rewards=(Reward(value=1.0, basis=None, basis_name="tau2"),) * 2,
        training_rewards=(1.0, 1.0),
    )
    loss = LossConfig(per_action=True)
    discounted = compute_advantages(group, group.training_rewards, GRPOConfig(loss=loss, gamma=0.8))
    # Returns 1 against 0.8 and 1: the first turn of the shorter episode is 0.1 above the mean.
    assert discounted == (pytest.approx((0.1,)), pytest.approx((-0.1, 0.0)))
    assert has_signal(discounted)
    equal = compute_advantages(group, group.training_rewards, GRPOConfig(loss=loss, gamma=1.0))
    assert not has_signal(equal)
