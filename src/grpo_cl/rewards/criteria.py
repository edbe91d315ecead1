"""τ²-bench's criteria one by one. Each is a pure function of a task and what was said and done."""

from collections.abc import Sequence

from grpo_cl.domains.base import Domain, Environment
from grpo_cl.errors import TaskDataError
from grpo_cl.rewards.agreement import Goal, decoded
from grpo_cl.types import Action, ActionCheck, EvaluationCriteria, Message, Task, ToolCall


def replay(
    domain: Domain, task: Task, messages: Sequence[Message], *, solo: bool = False
) -> Environment:
    """The world after the writes of a recorded conversation.

    Raises ``TaskDataError`` where the reference refuses to score: a user speaks in solo mode,
    a call has no answer, or a write answers differently than it did when it was recorded.
    """
    if solo and any(message.role == "user" for message in messages):
        raise TaskDataError("a user speaks in a solo episode")
    environment = domain.environment(task, solo=solo)
    for call, answer in _answered(messages[len(task.message_history) :]):
        if not environment.mutates(call):
            continue
        again = environment.call(call).content
        if decoded(again) != decoded(answer.content or ""):
            raise TaskDataError(
                f"{call.name} answered {again!r} on replay, recorded is {answer.content!r}"
            )
    return environment


def _answered(messages: Sequence[Message]) -> list[tuple[ToolCall, Message]]:
    pairs: list[tuple[ToolCall, Message]] = []
    waiting: list[ToolCall] = []
    for message in messages:
        if message.role == "tool":
            if not waiting or waiting[0].id != message.id:
                raise TaskDataError(f"a tool answers call {message.id!r}, which was not made")
            pairs.append((waiting.pop(0), message))
        elif waiting:
            raise TaskDataError(f"call {waiting[0].id!r} of {waiting[0].name} has no answer")
        else:
            waiting = list(message.tool_calls or ())
    if waiting:
        raise TaskDataError(f"call {waiting[0].id!r} of {waiting[0].name} has no answer")
    return pairs


def gold_environment(domain: Domain, task: Task) -> Environment:
    """The world the gold actions leave; an action that fails is passed over."""
    return _solve(domain.environment(task), task)


def goal_of(domain: Domain, task: Task) -> Goal:
    """Where the task begins and where its gold actions end."""
    environment = domain.environment(task)
    start = environment.state()
    return Goal(start, _solve(environment, task).state())


def _solve(environment: Environment, task: Task) -> Environment:
    for action in task.gold_actions:
        environment.perform(action.call)
    return environment


def matches(action: Action, call: ToolCall) -> bool:
    """Whether a call counts as the action, in the reference's lenient way.

    Unless the action says which, only the arguments that the call has are compared, so a call that
    leaves some out still counts; who made it never matters.
    """
    if call.name != action.name:
        return False
    keys = call.arguments.keys() if action.compare_args is None else action.compare_args
    made = {key: value for key, value in call.arguments.items() if key in keys}
    gold = {key: value for key, value in action.arguments.items() if key in keys}
    return not keys or made == gold


def check_actions(
    environment: Environment, actions: Sequence[Action], calls: Sequence[ToolCall]
) -> tuple[ActionCheck, ...]:
    """How each gold action was met by the calls of the episode."""
    return tuple(_check(environment, action, calls) for action in actions)


def _check(environment: Environment, action: Action, calls: Sequence[ToolCall]) -> ActionCheck:
    named = [call for call in calls if call.name == action.name]
    keys = action.arguments if action.compare_args is None else action.compare_args
    gold = {key: action.arguments.get(key) for key in keys}
    return ActionCheck(
        action_id=action.action_id,
        name=action.name,
        requestor=action.requestor,
        is_write=environment.mutates(action.call),
        match=any(matches(action, call) for call in named),
        name_match=bool(named),
        arguments_match=any(
            {key: call.arguments.get(key) for key in keys} == gold for call in named
        ),
    )


def check_communication(
    criteria: EvaluationCriteria, messages: Sequence[Message]
) -> tuple[bool, ...]:
    """Whether each text to communicate is part of something the agent wrote, commas aside."""
    said = [
        message.content.lower().replace(",", "")
        for message in messages
        if message.role == "assistant" and message.content
    ]
    return tuple(
        any(info.lower() in text for text in said) for info in criteria.communicate_info or ()
    )
