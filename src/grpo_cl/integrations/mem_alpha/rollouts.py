"""Rollouts and batches of Mem-α's trainer, and the trajectory groups they are made of."""

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_cl.envs.memory import MemorySystem
from grpo_cl.envs.memory.rewards.scorer import replay
from grpo_cl.integrations.mem_alpha.agent import AgentAction
from grpo_cl.integrations.mem_alpha.data import TrainingInstance
from grpo_cl.integrations.mem_alpha.evaluation import COMPONENTS
from grpo_cl.integrations.mem_alpha.instance_domain import Transcript, actions_of
from grpo_cl.integrations.mem_alpha.rewards import EvaluationResult
from grpo_cl.rewards.advantages import Advantage, step_rewards
from grpo_cl.types import Reward, Trajectory, TrajectoryGroup


@dataclass(frozen=True)
class RolloutResult:
    """One episode on an instance."""

    instance_id: str
    actions: tuple[AgentAction, ...]
    """One per chunk, also for a skipped one."""
    rewards: tuple[float, ...]
    """The reward of each action, which advantages are computed from."""
    log_probs: tuple[tuple[float, ...], ...]
    """The recorded log-probs of the tokens of each action."""
    evaluation: EvaluationResult
    memory: MemorySystem
    """The memory after the last chunk."""
    trajectory: Trajectory
    """Messages, exact tokens and loss mask."""
    reward: Reward
    training_reward: float

    @property
    def total_reward(self) -> float:
        """The mean reward of the actions."""
        return self.evaluation.total

    @property
    def successful_actions(self) -> int:
        """Calls that succeeded."""
        return self.evaluation.successful_actions

    @property
    def total_actions(self) -> int:
        """Calls that were attempted, malformed ones included."""
        return self.evaluation.total_actions


@dataclass(frozen=True)
class GRPOBatch:
    """The rollouts of one step, one group per instance, with their advantages."""

    instances: Sequence[TrainingInstance]
    rollouts: Sequence[Sequence[RolloutResult]]
    advantages: Sequence[Sequence[Advantage]]
    """For each rollout of each group, one advantage per action."""


def rollouts_of(
    group: TrajectoryGroup, transcript: Transcript, *, stamp: bool
) -> list[RolloutResult]:
    """The episodes of a group as rollouts."""
    rewards = step_rewards(group, group.training_rewards)
    pairs = zip(group.trajectories, group.rewards, group.training_rewards, rewards, strict=True)
    rollouts: list[RolloutResult] = []
    for trajectory, reward, training_reward, steps in pairs:
        episode = replay(trajectory.task, trajectory.messages, stamp=stamp)
        actions = tuple(actions_of(trajectory, episode, transcript(trajectory)))
        rollouts.append(
            RolloutResult(
                group.task.id,
                actions,
                steps or (),
                _log_probs(trajectory),
                _evaluation(reward, steps or (), actions),
                episode.memory,
                trajectory,
                reward,
                training_reward,
            )
        )
    return rollouts


def group_of(rollouts: Sequence[RolloutResult]) -> TrajectoryGroup:
    """The trajectory group of the rollouts of one instance."""
    return TrajectoryGroup(
        task=rollouts[0].trajectory.task,
        trajectories=tuple(rollout.trajectory for rollout in rollouts),
        rewards=tuple(rollout.reward for rollout in rollouts),
        training_rewards=tuple(rollout.training_reward for rollout in rollouts),
    )


def _evaluation(
    reward: Reward, steps: tuple[float, ...], actions: Sequence[AgentAction]
) -> EvaluationResult:
    r1, r2, r3, r4 = (reward.components.get(name, 0.0) for name in COMPONENTS.values())
    succeeded = sum(action.num_succeeded for action in actions)
    attempted = sum(action.step.num_attempts for action in actions)
    return EvaluationResult(r1, r2, r3, r4, steps, succeeded, attempted, reward.model_calls)


def _log_probs(trajectory: Trajectory) -> tuple[tuple[float, ...], ...]:
    """The log-probs of each turn; there is one per token of a turn."""
    trace = trajectory.tokens
    if trace is None:
        return ()
    values = iter(trace.logprobs)
    return tuple(tuple(next(values) for _ in range(start, end)) for start, end in trace.turns)
