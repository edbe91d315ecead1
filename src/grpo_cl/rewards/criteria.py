"""τ²-bench's evaluation criteria as pure functions of a task and a conversation."""

from collections.abc import Sequence

from grpo_cl.envs.base import Domain, Environment
from grpo_cl.errors import TaskDataError
from grpo_cl.rewards.agreement import GoalState, decode
from grpo_cl.types import Action, ActionCheck, EvaluationCriteria, Message, Task, ToolCall


def replay(
    domain: Domain, task: Task, messages: Sequence[Message], *, solo: bool = False
) -> Environment:
    """The environment after the writes of a recorded conversation.

    Raises ``TaskDataError`` where τ²-bench refuses to score: a user message in solo mode, a call
    without a result, or a write whose result differs from the recorded one.
    """
    if solo and any(message.role == "user" for message in messages):
        raise TaskDataError("a user speaks in a solo episode")
    environment = domain.environment(task, solo=solo)
    for call, recorded in _calls_with_results(messages[len(task.message_history) :]):
        if not environment.mutates(call):
            continue
        content = environment.call(call).content
        if decode(content) != decode(recorded.content or ""):
            raise TaskDataError(
                f"{call.name} answered {content!r} on replay, recorded is {recorded.content!r}"
            )
    return environment


def _calls_with_results(messages: Sequence[Message]) -> list[tuple[ToolCall, Message]]:
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
    """The environment after the gold actions; actions that fail are skipped."""
    return _apply_gold_actions(domain.environment(task), task)


def goal_state(domain: Domain, task: Task) -> GoalState:
    """The initial state of the task and the state after its gold actions."""
    environment = domain.environment(task)
    start = environment.state()
    return GoalState(start, _apply_gold_actions(environment, task).state())


def _apply_gold_actions(environment: Environment, task: Task) -> Environment:
    for action in task.gold_actions:
        environment.perform(action.call)
    return environment


def matches(action: Action, call: ToolCall) -> bool:
    """Whether τ²-bench counts a call as the action.

    Without ``compare_args``, only the arguments of the call are compared, so a call that omits some
    still matches; the requestor is not compared.
    """
    if call.name != action.name:
        return False
    keys = call.arguments.keys() if action.compare_args is None else action.compare_args
    called = {key: value for key, value in call.arguments.items() if key in keys}
    gold = {key: value for key, value in action.arguments.items() if key in keys}
    return not keys or called == gold


def check_actions(
    environment: Environment, actions: Sequence[Action], calls: Sequence[ToolCall]
) -> tuple[ActionCheck, ...]:
    """For each gold action, which parts of it the calls of the episode match."""
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
    """Whether each required text occurs in a message of the agent with its commas removed."""
    agent_texts = [
        message.content.lower().replace(",", "")
        for message in messages
        if message.role == "assistant" and message.content
    ]
    required = criteria.communicate_info or ()
    return tuple(any(info.lower() in text for text in agent_texts) for info in required)
