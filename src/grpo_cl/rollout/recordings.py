"""Recorded conversations: executes their tool calls and scores the trajectories."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from grpo_cl.envs.base import Domain, Environment
from grpo_cl.rewards import RewardOracle
from grpo_cl.rewards.criteria import gold_environment, replay
from grpo_cl.types import (
    Message,
    Record,
    Task,
    Termination,
    ToolCall,
    ToolResult,
    Trajectory,
)


class Recording(Record):
    """Messages and tool calls of a conversation; executing the calls gives their results."""

    id: str
    domain: str
    task_id: str
    kind: str | None = None
    solo_mode: bool = False
    termination_reason: Termination
    messages: tuple[Message, ...]


class Execution(NamedTuple):
    """A recording with its tool results."""

    trajectory: Trajectory
    outputs: Sequence[tuple[ToolCall, ToolResult]]
    environment: Environment


def execute(domain: Domain, task: Task, recording: Recording) -> Execution:
    """Run the tool calls of a recording in order; recorded tool messages are ignored.

    The recording begins with the task's message history, which the environment already contains.
    """
    environment = domain.environment(task, solo=recording.solo_mode)
    history_length = len(task.message_history)
    messages = list(recording.messages[:history_length])
    outputs: list[tuple[ToolCall, ToolResult]] = []
    for message in recording.messages[history_length:]:
        if message.role == "tool":
            continue
        messages.append(message)
        for call in message.tool_calls or ():
            result = environment.call(call)
            outputs.append((call, result))
            messages.append(result.message(call))
    trajectory = Trajectory(
        task=task,
        messages=tuple(messages),
        termination=recording.termination_reason,
        solo=recording.solo_mode,
    )
    return Execution(trajectory, outputs, environment)


def score_recording(domain: Domain, oracle: RewardOracle, recording: Recording) -> dict[str, Any]:
    """The reward, checks, tool outputs and state hashes of a recording, as plain JSON."""
    task = domain.task(recording.task_id)
    run = execute(domain, task, recording)
    reward = oracle.score(run.trajectory)
    return {
        "id": recording.id,
        "reward": reward.value,
        "basis": reward.basis and [part.value for part in reward.basis],
        "basis_name": reward.basis_name,
        "components": {part.value: value for part, value in reward.components.items()},
        "not_judged": [part.value for part in reward.not_judged],
        "judgement": reward.judgement and reward.judgement.model_dump(mode="json"),
        "action_checks": [check.model_dump() for check in reward.action_checks],
        "env_assertions": list(reward.env_assertions),
        "communicate_checks": list(reward.communicate_checks),
        "tool_accuracy": reward.tool_accuracy,
        "reason": reward.reason,
        "tool_outputs": [
            {
                "id": call.id,
                "name": call.name,
                "requestor": call.requestor,
                "content": result.content,
                "error": result.error,
                "mutates_state": run.environment.mutates(call),
            }
            for call, result in run.outputs
        ],
        "state_hashes": _hashes(domain, run),
        "release": domain.release_of(run.trajectory.task),
    }


def _hashes(domain: Domain, run: Execution) -> dict[str, str | None]:
    task, solo = run.trajectory.task, run.trajectory.solo
    environments = {
        "init": domain.environment(task),
        "live": run.environment,
        "gold": gold_environment(domain, task),
        "replay": replay(domain, task, run.trajectory.messages, solo=solo),
    }
    return {
        f"{name}_{side}": value
        for name, environment in environments.items()
        for side, value in environment.state_hash()._asdict().items()
    }
