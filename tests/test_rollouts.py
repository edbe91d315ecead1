from collections.abc import Callable

from grpo_cl.domains import Domain
from grpo_cl.trainer.rollouts import Batch, summary
from grpo_cl.types import Reward, RewardType, Termination, Trajectory, TrajectoryGroup


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
