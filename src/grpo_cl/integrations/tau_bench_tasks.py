"""Task files of τ-bench's first release and of recipes that copied its format.

A task is ``{"instruction": …, "actions": [{"name": …, "kwargs": …}], "domain": …}``. Its gold
actions are checked against the tools of the domain, because an action that no agent can perform
would give every episode of the task the same reward.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from jsonschema import Draft202012Validator
from pydantic import AliasChoices, Field, JsonValue, ValidationError

from grpo_cl.envs import Domain
from grpo_cl.envs.base import Environment
from grpo_cl.errors import ConfigError
from grpo_cl.rollout.baselines import TRANSFER_TOOL
from grpo_cl.types import (
    Action,
    EvaluationCriteria,
    Record,
    RewardType,
    Task,
    ToolSchema,
    UserScenario,
)

DomainLoader = Callable[[str], Domain]


class _Action(Record):
    name: str
    kwargs: dict[str, JsonValue] = Field(validation_alias=AliasChoices("kwargs", "arguments"))


class _Entry(Record):
    """One task of a file; ``annotator`` is not used."""

    instruction: str = Field(min_length=1)
    actions: tuple[_Action, ...] = ()
    domain: str | None = None
    id: str | int | None = Field(None, validation_alias=AliasChoices("id", "task_id"))
    user_id: str | None = None
    outputs: tuple[str, ...] = ()
    """What the agent must tell the user."""
    annotator: JsonValue = None


def is_tau_bench_task(entry: object) -> bool:
    """Whether an entry of a task file has the format of τ-bench's first release."""
    return isinstance(entry, Mapping) and "instruction" in entry and "user_scenario" not in entry


def tau_bench_task(entry: Any, *, domain: str | None, load: DomainLoader) -> Task:
    """The task of one entry; raises ``ConfigError`` with the field that cannot be used.

    ``domain`` is used if the entry names none.
    """
    parsed = _parse(entry)
    name = parsed.domain or domain
    if name is None:
        raise ConfigError("domain: it is missing; name it in the task or with --domains")
    try:
        loaded = load(name)
    except ConfigError as error:
        raise ConfigError(f"domain: {error}") from error
    if loaded.scorer() is not None:
        raise ConfigError(f"domain: {name!r} has no tasks with gold actions")
    actions = _gold_actions(parsed, loaded)
    task = Task(
        id=_task_id(parsed, name),
        domain=name,
        user_scenario=UserScenario(instructions=_instructions(parsed)),
    )
    environment = loaded.environment(task)
    _check_writes(actions, environment)
    criteria = EvaluationCriteria(
        actions=actions,
        communicate_info=parsed.outputs or None,
        reward_basis=_reward_basis(parsed, loaded, environment, actions),
    )
    return task.model_copy(update={"evaluation_criteria": criteria})


def _parse(entry: Any) -> _Entry:
    try:
        return _Entry.model_validate(entry)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(str(part) for part in problem["loc"]) or "the task"
        if problem["type"] == "extra_forbidden":
            known = ", ".join(_Entry.model_fields)
            raise ConfigError(f"{field}: unknown field; known: {known}") from error
        raise ConfigError(f"{field}: {problem['msg']}") from error


def _task_id(entry: _Entry, domain: str) -> str:
    """An id with the entry's own or, since reordering must not rename tasks, from its content.

    The domain's own tasks have ids such as "5" too, some of which are test tasks.
    """
    content = json.dumps(entry.model_dump(mode="json", exclude={"annotator"}), sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    return f"{domain}-task-{digest if entry.id is None else entry.id}"


def _instructions(entry: _Entry) -> str:
    if entry.user_id is None or entry.user_id in entry.instruction:
        return entry.instruction
    return f"{entry.instruction} Your user id is {entry.user_id}."


def _gold_actions(entry: _Entry, domain: Domain) -> tuple[Action, ...]:
    agent = _schemas_by_name(domain.tools())
    user = _schemas_by_name(domain.user_tools)
    tools = {**user, **agent}
    actions: list[Action] = []
    for index, action in enumerate(entry.actions):
        if action.name not in tools:
            close = get_close_matches(action.name, tools, n=1)
            hint = f"did you mean {close[0]!r}" if close else f"it has {', '.join(sorted(tools))}"
            raise ConfigError(
                f"actions.{index}.name: domain {domain.name!r} has no tool {action.name!r}; {hint}"
                "; the file of own tools is named with --tools, in an engine with tools=FILE.py"
            )
        _check_arguments(action, tools[action.name], f"actions.{index}.kwargs")
        actions.append(
            Action(
                action_id=f"{index}",
                requestor="assistant" if action.name in agent else "user",
                name=action.name,
                arguments=action.kwargs,
                # Without this, a call with no arguments would match. A summary is free text.
                compare_args=() if action.name == TRANSFER_TOOL else tuple(action.kwargs),
            )
        )
    return tuple(actions)


def _schemas_by_name(schemas: Sequence[ToolSchema]) -> dict[str, ToolSchema]:
    return {schema["function"]["name"]: schema["function"]["parameters"] for schema in schemas}


def _check_arguments(action: _Action, parameters: ToolSchema, field: str) -> None:
    validator = Draft202012Validator({"additionalProperties": False, **parameters})
    for error in validator.iter_errors(action.kwargs):
        path = ".".join([field, *(str(part) for part in error.absolute_path)])
        raise ConfigError(f"{path}: {action.name} does not take these arguments: {error.message}")


def _reward_basis(
    entry: _Entry, domain: Domain, environment: Environment, actions: Sequence[Action]
) -> tuple[RewardType, ...]:
    """DB and outputs as in τ-bench, and ACTION if gold actions leave no trace in either."""
    if not actions and not entry.outputs:
        raise ConfigError(
            "actions: there are no gold actions and no outputs, so doing nothing would be a success"
        )
    writes = {action.name for action in actions if environment.mutates(action.call)}
    needs_actions = any(action.name in domain.own_tools - writes for action in actions) or not (
        writes or entry.outputs
    )
    return (
        RewardType.DB,
        *([RewardType.ACTION] if needs_actions else []),
        *([RewardType.COMMUNICATE] if entry.outputs else []),
    )


def _check_writes(actions: Sequence[Action], environment: Environment) -> None:
    """Perform the gold actions; a read may fail, as a search that finds nothing does."""
    for index, action in enumerate(actions):
        problem = environment.perform(action.call)
        if problem is not None and environment.mutates(action.call):
            raise ConfigError(f"actions.{index}: {action.name} fails: {problem}")
