from collections.abc import Callable

import pytest

from grpo_cl.config import GRPOConfig, LossConfig
from grpo_cl.domains import Domain
from grpo_cl.trainer.rollouts import Batch, credit, is_telling, summary
from grpo_cl.types import (
    Reward,
    RewardType,
    Termination,
    TokenTrace,
    Trajectory,
    TrajectoryGroup,
)


def test_success_is_logged_beside_the_reward_that_is_learned_from(
    domain: Callable[[str], Domain],
) -> None:
    task = domain("mock").task("create_task_1")
    played = [
        Trajectory(task=task, messages=(), termination=ending)
        for ending in (*[Termination.AGENT_STOP] * 4, Termination.INFRASTRUCTURE_ERROR)
    ]
    basis = (RewardType.DB,)
    values = (1.0, 1 - 1e-9, 0.0, 0.5, 1.0)  # a product of floats may be a little less than 1
    rewards = [Reward(value=value, basis=basis, basis_name="tau2") for value in values]
    group = TrajectoryGroup(
        task=task,
        trajectories=tuple(played),
        rewards=tuple(rewards),
        training_rewards=(1.0, 1.0, 0.75, 0.25, 1.0),
    )
    numbers = summary(Batch([group], 0), num_flat=0)
    assert (numbers["pass_rate"], numbers["reward_mean"]) == (0.5, 0.75)
    assert numbers["infrastructure_errors"] == 1.0


def test_solutions_in_fewer_turns_are_learned_from_where_later_rewards_count_less(
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
    ending = Termination.AGENT_STOP
    group = TrajectoryGroup(
        task=task,
        trajectories=tuple(
            Trajectory(task=task, messages=(), termination=ending, tokens=trace) for trace in traces
        ),
        rewards=(Reward(value=1.0, basis=None, basis_name="tau2"),) * 2,
        training_rewards=(1.0, 1.0),
    )
    loss = LossConfig(per_action=True)
    later = credit(group, group.training_rewards, GRPOConfig(loss=loss, gamma=0.8))
    # Returns 1 against 0.8 and 1: the first turn of the shorter one is 0.1 above the mean.
    assert later == (pytest.approx((0.1,)), pytest.approx((-0.1, 0.0)))
    assert is_telling(later)
    equal = credit(group, group.training_rewards, GRPOConfig(loss=loss, gamma=1.0))
    assert not is_telling(equal)
