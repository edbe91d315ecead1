"""Domains as TRL's environments: classes whose public methods are the tools of a domain.

TRL makes one instance per rollout, resets it for each, renders its methods as tools, and ends at
the first reply without a call; so where there is a user, speaking to them is a tool too.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from grpo_cl.engines.session import SyncSession, Turn
from grpo_cl.engines.venue import Venue
from grpo_cl.rollout import system_prompt
from grpo_cl.rows import BEGIN, SOLO
from grpo_cl.types import Message, Task, ToolCall

RESPOND = "respond_to_user"
SPEAKING = f"You write to the user by calling `{RESPOND}`; anything else you write ends your work."
OVER = "The conversation is over. Write a last word without calling anything."

_RESPOND_SCHEMA: dict[str, Any] = {
    "name": RESPOND,
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
    """One episode at a time; subclasses have a method for each tool of their domain."""

    _venue: ClassVar[Venue]

    def __init__(self) -> None:
        self._session: SyncSession | None = None
        self._is_over = False

    def reset(self, **row: Any) -> str | None:
        """Begin an episode of the row's task; what the user says first, if there is one."""
        if self._session is not None:
            self._session.close()
        self._session = SyncSession(self._venue, Task.model_validate_json(row["task"]))
        turn = self._session.open()
        self._is_over = turn.done
        return _heard(turn.messages) or None

    def get_reward(self) -> float | None:
        """What a local run gives for the episode; None where a failing endpoint ended it."""
        assert self._session is not None, "an environment is reset before it is scored"
        return self._session.finish().learned

    def _do(self, reply: Message) -> str:
        """What the agent reads after ``reply``; a step after the last one changes nothing."""
        assert self._session is not None, "an environment is reset before it is used"
        if self._is_over:
            return OVER
        turn = self._session.step(reply)
        self._is_over = turn.done
        return _answer(turn)


def environment_class(venue: Venue, domain: str) -> type[DomainEnvironment]:
    """The environment of one domain for TRL's ``environment_factory``."""
    solo = _is_solo(venue)
    schemas = [schema["function"] for schema in venue.domain(domain).tools(solo=solo)]
    members: dict[str, Any] = {"_venue": venue}
    for schema in schemas if solo else [*schemas, _RESPOND_SCHEMA]:
        members[schema["name"]] = _method(schema)
    return type(f"{domain.title()}Environment", (DomainEnvironment,), members)


def environment_row(venue: Venue, task: Task) -> dict[str, Any]:
    """A row of the dataset for TRL's environments."""
    solo = _is_solo(venue)
    compact = venue.rollout.prompt == "compact"
    system = system_prompt(venue.domain(task.domain), task, solo=solo, compact=compact)
    system = system if solo else f"{system}\n\n{SPEAKING}"
    # The user's first words are appended to the last message when the environment is reset.
    said = BEGIN if solo else ""
    return {
        "prompt": [{"role": "system", "content": system}, {"role": "user", "content": said}],
        "environment": task.domain,
        "task": task.model_dump_json(exclude_none=True),
    }


def _is_solo(venue: Venue) -> bool:
    return venue.rollout.user == SOLO


def _heard(messages: Sequence[Message]) -> str:
    """What stands before the first reply: the user's words, or a whole earlier conversation."""
    said = [message for message in messages if message.content]
    if sum(message.role == "user" for message in said) <= 1 and len(said) <= 2:
        return "".join(message.content or "" for message in said if message.role == "user")
    return "\n".join(f"{message.role}: {message.content}" for message in said)


def _answer(turn: Turn) -> str:
    read = "\n".join(m.content or "" for m in turn.messages if m.role in ("tool", "user"))
    return f"{read}\n\n{OVER}".strip() if turn.done else read


def _method(schema: Mapping[str, Any]) -> Callable[..., str]:
    """A tool as the method whose hints and docstring say what its schema says."""
    name: str = schema["name"]

    def call(self: DomainEnvironment, **arguments: Any) -> str:
        # A wrong argument is the domain's to answer, as in a local run.
        if name == RESPOND:
            return self._do(Message(role="assistant", content=str(arguments.get("text", ""))))
        made = ToolCall(name=name, arguments=arguments)
        return self._do(Message(role="assistant", tool_calls=(made,)))

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
    """The type from which transformers makes the same schema, as far as it can."""
    kind = schema.get("type")
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    if kind == "array":
        return list[_hint(schema.get("items", {}))]
    if kind == "object":
        return dict
    return _TYPES.get(kind, Any) if isinstance(kind, str) else Any


def _docstring(description: str, parameters: Mapping[str, Any]) -> str:
    text = _line(description)
    if not parameters:
        return text
    lines = [f"    {name}: {_described(schema)}" for name, schema in parameters.items()]
    return "\n".join([text, "", "Args:", *lines])


def _described(schema: Mapping[str, Any]) -> str:
    text = _line(schema.get("description", "")) or "A value."
    inner = schema.get("items", schema)
    # Hints cannot say which keys an object has, so the words do.
    if "anyOf" in inner or "properties" in inner:
        text = f"{text} As JSON Schema {_line(json.dumps(inner))}"
    return text


def _line(text: str) -> str:
    """One line without the words that begin a section of a docstring."""
    for section in _SECTIONS:
        text = text.replace(section, section.replace(":", " -"))
    return " ".join(text.split())
