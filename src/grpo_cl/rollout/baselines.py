"""Baselines of a task: rewards of the gold actions, and of policies without skill (floors).

A task that a floor policy solves says little about an agent, so reports show the floors and the
score over the remaining tasks next to each score.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpo_cl.envs.base import DONE, Domain, Environment
from grpo_cl.rewards import RewardOracle
from grpo_cl.rollout.recordings import Recording, execute
from grpo_cl.types import (
    SUCCESS,
    Message,
    Record,
    RewardType,
    Task,
    Termination,
    ToolCall,
    Trajectory,
)
from grpo_cl.users.base import STOP
from grpo_cl.users.scripted.ticket import ticket

TRANSFER_TOOL = "transfer_to_human_agents"
MAX_IDENTIFIERS = 4
"""Words of a ticket that the floor policies try as arguments."""
READ_REPEATS = 2
_IDENTIFIER = re.compile(r"#?\b\w*\d[\w\-]*")
"""A word with a digit: an id, a phone number, a date."""
_PLACEHOLDERS: Mapping[str, Any] = {"integer": 1, "number": 1.0, "boolean": True, "object": {}}
"""Arguments by JSON type; others get an identifier."""


class TaskBaselines(Record):
    """Rewards of three fixed policies on one task."""

    task_id: str
    gold: float
    idle: float
    """Reward of the do-nothing policy."""
    transfer: float
    """Reward of the always-transfer policy."""
    not_judged: tuple[RewardType, ...]
    is_refusal: bool

    @property
    def is_informative(self) -> bool:
        """Whether neither the do-nothing nor the always-transfer policy solves the task."""
        return self.idle < 1 and self.transfer < 1


class TaskFloors(Record):
    """Rewards of the four floor policies on one task."""

    task_id: str
    idle: float
    """Reward of the do-nothing policy."""
    transfer: float
    """Reward of the always-transfer policy."""
    repeat_reads: float
    """Reward of a policy that repeats every read and writes nothing."""
    spam_writes: float
    """Reward of a policy that makes every write it can."""

    @property
    def is_solved(self) -> bool:
        """Whether one of the policies solves the task."""
        rewards = (self.idle, self.transfer, self.repeat_reads, self.spam_writes)
        return max(rewards) >= SUCCESS


def score_floors(
    domain: Domain, tasks: Sequence[Task], oracle: RewardOracle, *, solo: bool
) -> list[TaskFloors]:
    """Play the floor policies on ``tasks``; they know the tools and the ticket, not the solution.

    The guesses of arguments are the same in every call, so the scores are reproducible.
    """
    return [_floors(domain, task, oracle, solo=solo) for task in tasks]


def _floors(domain: Domain, task: Task, oracle: RewardOracle, *, solo: bool) -> TaskFloors:
    environment = domain.environment(task, solo=solo)
    guesses = list(_guessed_calls(domain, task, solo=solo))
    reads = [call for call in guesses if not environment.mutates(call)]
    calls_by_policy = {
        "idle": [],
        "transfer": [ToolCall(name=TRANSFER_TOOL, arguments={"summary": ""})],
        "repeat_reads": [call for call in reads for _ in range(READ_REPEATS)],
        "spam_writes": [call for call in guesses if environment.mutates(call)],
    }
    rewards = {
        name: oracle.score(_play(domain, task, calls, solo=solo)).value
        for name, calls in calls_by_policy.items()
    }
    return TaskFloors(task_id=task.id, **rewards)


def _guessed_calls(domain: Domain, task: Task, *, solo: bool) -> Iterator[ToolCall]:
    """Calls of every tool but the last ones of an episode, with each identifier of the ticket."""
    identifiers = list(dict.fromkeys(_IDENTIFIER.findall(ticket(task))))[:MAX_IDENTIFIERS] or [""]
    for schema in domain.tools(solo=solo):
        name, parameters = schema["function"]["name"], schema["function"]["parameters"]
        if name in {DONE, TRANSFER_TOOL}:
            continue
        kinds = [parameters["properties"][key] for key in parameters.get("required", ())]
        made: list[dict[str, Any]] = []
        for identifier in identifiers:
            values = [_guess(kind, identifier) for kind in kinds]
            arguments = dict(zip(parameters.get("required", ()), values, strict=True))
            if arguments not in made:
                made.append(arguments)
        yield from (ToolCall(name=name, arguments=arguments) for arguments in made)


def _guess(kind: Mapping[str, Any], identifier: str) -> Any:
    if "enum" in kind:
        return kind["enum"][0]
    if kind.get("type") == "array":
        return [identifier]
    return _PLACEHOLDERS.get(str(kind.get("type")), identifier)


def _play(domain: Domain, task: Task, calls: Sequence[ToolCall], *, solo: bool) -> Trajectory:
    """The episode of an agent that makes ``calls``, without those that the environment refuses."""
    environment = domain.environment(task, solo=solo)
    opening = () if solo else (Message(role="user", content="Hello."),)
    messages = [*task.message_history, *opening, *_accepted(environment, calls)]
    if solo:
        messages.append(Message(role="assistant", content=STOP))
    else:
        messages.append(Message(role="assistant", content="Is there anything else?"))
        messages.append(Message(role="user", content=STOP))
    return Trajectory(
        task=task,
        messages=tuple(messages),
        termination=Termination.AGENT_STOP if solo else Termination.USER_STOP,
        solo=solo,
    )


def _accepted(environment: Environment, calls: Sequence[ToolCall]) -> Iterator[Message]:
    for number, call in enumerate(calls):
        made = call.model_copy(update={"id": str(number)})
        result = environment.call(made)
        if not result.error:
            yield Message(role="assistant", tool_calls=(made,))
            yield result.message(made)


def score_baselines(domain: Domain, task: Task) -> TaskBaselines:
    """Score the gold actions, no action, and a transfer on ``task``."""
    oracle = RewardOracle({domain.name: domain})
    transfer = ToolCall(id="0", name=TRANSFER_TOOL, arguments={"summary": ""})
    calls_by_policy = {
        "gold": [action.call for action in task.gold_actions],
        "idle": [],
        "transfer": [transfer],
    }
    rewards = {
        name: oracle.score(
            execute(
                domain, task, scripted_recording(task, calls, communicates=name == "gold")
            ).trajectory
        )
        for name, calls in calls_by_policy.items()
    }
    return TaskBaselines(
        task_id=task.id,
        **{name: reward.value for name, reward in rewards.items()},
        not_judged=rewards["gold"].not_judged,
        is_refusal=task.is_refusal,
    )


def scripted_recording(
    task: Task, calls: Sequence[ToolCall], *, communicates: bool = False
) -> Recording:
    """A conversation that makes ``calls``; with ``communicates`` it states the required texts."""
    info = " ".join(task.communicate_info if communicates else ())
    call_messages = [
        Message(role=call.requestor, tool_calls=(call.model_copy(update={"id": str(number)}),))
        for number, call in enumerate(calls)
    ]
    closing = Message(role="assistant", content=f"{info} Is there anything else?")
    return Recording(
        id=task.id,
        domain=task.domain,
        task_id=task.id,
        termination_reason=Termination.USER_STOP,
        messages=(
            *task.message_history,
            Message(role="user", content="Hello."),
            *call_messages,
            closing,
            Message(role="user", content=STOP),
        ),
    )


def summarize(tasks: Sequence[TaskBaselines]) -> Mapping[str, Any]:
    """Counts over the tasks of a split."""
    return {
        "tasks": len(tasks),
        "gold": sum(task.gold == 1 for task in tasks),
        "idle": sum(task.idle == 1 for task in tasks),
        "transfer": sum(task.transfer == 1 for task in tasks),
        "telling": sum(task.is_informative for task in tasks),
        "needs_judge": sum(bool(task.not_judged) for task in tasks),
        "refusals": sum(task.is_refusal for task in tasks),
        "broken": [task.task_id for task in tasks if task.gold < 1],
    }
