"""Domains as TRL environments: classes whose public methods are the tools of a domain.

TRL creates one instance per rollout, calls ``reset``, renders its methods as tools, and ends the
episode at the first reply without a tool call. With a user, messages to the user are therefore a
tool call too.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from grpo_cl.integrations.episode_context import EpisodeContext
from grpo_cl.integrations.rows import SOLO, SOLO_PROMPT
from grpo_cl.integrations.session import SyncSession, Turn
from grpo_cl.rollout import system_prompt
from grpo_cl.types import Message, Task, ToolCall

RESPOND_TOOL = "respond_to_user"
RESPOND_INSTRUCTION = (
    f"You write to the user by calling `{RESPOND_TOOL}`; anything else you write ends your work."
)
EPISODE_OVER = "The conversation is over. Write a last word without calling anything."

_RESPOND_SCHEMA: dict[str, Any] = {
    "name": RESPOND_TOOL,
    "description": "Write to the user and read their answer.",
    "parameters": {
        "type": "object",
        "properties": {"text": {"type": "string", "description": "What you say to the user."}},
        "required": ["text"],
    },
}
_TYPES: dict[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool}
_SECTIONS = ("Args:", "Returns:", "Raises:")


class DomainEnvironment:
    """Runs one episode at a time; subclasses have one method per tool of their domain."""

    _context: ClassVar[EpisodeContext]

    def __init__(self) -> None:
        self._session: SyncSession | None = None
        self._is_over = False

    def reset(self, **row: Any) -> str | None:
        """Start an episode of the row's task; returns the user's first message, if any."""
        if self._session is not None:
            self._session.close()
        self._session = SyncSession(self._context, Task.model_validate_json(row["task"]))
        turn = self._session.open()
        self._is_over = turn.done
        return _opening_text(turn.messages) or None

    def get_reward(self) -> float | None:
        """The training reward of the episode; None if an endpoint failure ended it."""
        assert self._session is not None, "reset() must be called before get_reward()"
        return self._session.finish().training_reward

    def _step(self, reply: Message) -> str:
        """The text the agent reads after ``reply``; replies after the end have no effect."""
        assert self._session is not None, "reset() must be called before a tool"
        if self._is_over:
            return EPISODE_OVER
        turn = self._session.step(reply)
        self._is_over = turn.done
        return _observation_text(turn)


def environment_class(context: EpisodeContext, domain: str) -> type[DomainEnvironment]:
    """The environment class of one domain for TRL's ``environment_factory``."""
    solo = _is_solo(context)
    schemas = [schema["function"] for schema in context.domain(domain).tools(solo=solo)]
    members: dict[str, Any] = {"_context": context}
    for schema in schemas if solo else [*schemas, _RESPOND_SCHEMA]:
        members[schema["name"]] = _method(schema)
    return type(f"{domain.title()}Environment", (DomainEnvironment,), members)


def environment_row(context: EpisodeContext, task: Task) -> dict[str, Any]:
    """A dataset row for TRL's environments."""
    solo = _is_solo(context)
    compact = context.rollout.prompt == "compact"
    system = system_prompt(context.domain(task.domain), task, solo=solo, compact=compact)
    system = system if solo else f"{system}\n\n{RESPOND_INSTRUCTION}"
    # TRL appends the return value of ``reset`` to the last message.
    first_message = SOLO_PROMPT if solo else ""
    return {
        "prompt": [
            {"role": "system", "content": system},
            {"role": "user", "content": first_message},
        ],
        "environment": task.domain,
        "task": task.model_dump_json(exclude_none=True),
    }


def _is_solo(context: EpisodeContext) -> bool:
    return context.rollout.user == SOLO


def _opening_text(messages: Sequence[Message]) -> str:
    """The messages before the first reply: the user's message, or a whole initial conversation."""
    texts = [message for message in messages if message.content]
    if sum(message.role == "user" for message in texts) <= 1 and len(texts) <= 2:
        return "".join(message.content or "" for message in texts if message.role == "user")
    return "\n".join(f"{message.role}: {message.content}" for message in texts)


def _observation_text(turn: Turn) -> str:
    text = "\n".join(m.content or "" for m in turn.messages if m.role in ("tool", "user"))
    return f"{text}\n\n{EPISODE_OVER}".strip() if turn.done else text


def _method(schema: Mapping[str, Any]) -> Callable[..., str]:
    """A tool as a method whose type hints and docstring reproduce its schema."""
    name: str = schema["name"]

    def call(self: DomainEnvironment, **arguments: Any) -> str:
        # Invalid arguments are answered by the domain, as in a local run.
        if name == RESPOND_TOOL:
            return self._step(Message(role="assistant", content=str(arguments.get("text", ""))))
        tool_call = ToolCall(name=name, arguments=arguments)
        return self._step(Message(role="assistant", tool_calls=(tool_call,)))

    parameters: Mapping[str, Any] = schema["parameters"].get("properties", {})
    required = schema["parameters"].get("required", ())
    hints = {key: _hint(value) for key, value in parameters.items()}
    call.__name__ = call.__qualname__ = name
    call.__doc__ = _docstring(schema["description"], parameters)
    call.__annotations__ = {**hints, "return": str}
    call.__dict__["__signature__"] = inspect.Signature(
        [
            inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            *(
                inspect.Parameter(
                    key,
                    inspect.Parameter.KEYWORD_ONLY,
                    annotation=hint,
                    default=inspect.Parameter.empty if key in required else None,
                )
                for key, hint in hints.items()
            ),
        ]
    )
    return call


def _hint(schema: Mapping[str, Any]) -> Any:
    """The type hint from which transformers derives the same schema, as far as possible."""
    kind = schema.get("type")
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    if kind == "array":
        return list[_hint(schema.get("items", {}))]
    if kind == "object":
        return dict
    return _TYPES.get(kind, Any) if isinstance(kind, str) else Any


def _docstring(description: str, parameters: Mapping[str, Any]) -> str:
    text = _one_line(description)
    if not parameters:
        return text
    lines = [f"    {name}: {_parameter_text(schema)}" for name, schema in parameters.items()]
    return "\n".join([text, "", "Args:", *lines])


def _parameter_text(schema: Mapping[str, Any]) -> str:
    text = _one_line(schema.get("description", "")) or "A value."
    inner = schema.get("items", schema)
    # Type hints cannot express the keys of an object, so the docstring has the schema.
    if "anyOf" in inner or "properties" in inner:
        text = f"{text} As JSON Schema {_one_line(json.dumps(inner))}"
    return text


def _one_line(text: str) -> str:
    """The text on one line, without the section names of Google docstrings."""
    for section in _SECTIONS:
        text = text.replace(section, section.replace(":", " -"))
    return " ".join(text.split())
