"""The tools of one side of an episode: the carrier's own functions, bound to our databases."""

import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from types import FunctionType
from typing import Any, ClassVar

from inspect_ai.tool import Tool, ToolDef
from inspect_ai.tool import ToolError as CarrierToolError
from pydantic import BaseModel

from grpo_cl.domains.base import ToolSchema
from grpo_cl.domains.calculator import calculate
from grpo_cl.domains.overlay import EpisodeDatabase
from grpo_cl.errors import ToolError

TOOL_FAILURES = (
    ToolError,
    CarrierToolError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a tool raises when it is called wrongly; τ²-bench shows the text of any exception."""


class Toolkit:
    """Tools over one episode's database."""

    tools: ClassVar[frozenset[str]] = frozenset()
    """What may be called by name; other methods serve initial states and assertions."""
    writes: ClassVar[frozenset[str]] = frozenset()
    """The tools that may change the world."""
    state: ClassVar[Mapping[str, Callable[[], Any]]] = {}
    """Attributes besides the database that live as long as the episode."""

    def __init__(self, db: EpisodeDatabase) -> None:
        self.db: Any = db
        for name, make in self.state.items():
            setattr(self, name, make())

    def use(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Call a tool; raises one of ``TOOL_FAILURES`` if it was called wrongly."""
        if name not in self.tools:
            raise ToolError(f"Tool '{name}' not found.")
        return self.run(name, arguments)

    def run(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Call any public function, tool or not."""
        function = None if name.startswith("_") else vars(type(self)).get(name)
        if function is None:
            raise ToolError(f"Function '{name}' not found.")
        with warnings.catch_warnings():
            # An argument of the wrong type is stored as it is, and pydantic warns when it is shown.
            warnings.simplefilter("ignore")
            return function(self, **arguments)


def adopt(
    source: type[BaseModel],
    *,
    name: str,
    tools: Iterable[str],
    writes: Iterable[str],
    mends: Iterable[Callable[..., Any]] = (),
) -> type[Toolkit]:
    """A toolkit with the functions of a carrier class, ``mends`` put over them.

    The functions are renamed to ``name``, so that the errors Python makes for missing or extra
    arguments read as the reference's do.
    """
    members: dict[str, Any] = {
        key: _named(member, name) if isinstance(member, FunctionType) else member
        for key, member in vars(source).items()
        if isinstance(member, (FunctionType, property)) and not key.startswith("__")
    }
    members |= {mend.__name__: _named(mend, name) for mend in mends}
    members["tools"] = frozenset(tools)
    members["writes"] = frozenset(writes)
    members["state"] = {
        field: lambda info=info: info.get_default(call_default_factory=True)
        for field, info in source.model_fields.items()
        if field not in {"db", "store", "instance", "initialized"}
    }
    return type(name, (Toolkit,), members)


def _named(function: Any, owner: str) -> FunctionType:
    twin = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    twin.__kwdefaults__ = function.__kwdefaults__
    twin.__doc__ = function.__doc__
    twin.__annotations__ = function.__annotations__
    twin.__qualname__ = f"{owner}.{function.__name__}"
    return twin


def render(value: Any) -> str:
    """A tool's return value as τ²-bench shows it to the caller.

    Numbers directly inside a dict or list become strings, numbers inside records stay numbers, and
    text passes through, JSON in it spaced as ``json.dumps`` does.
    """
    if isinstance(value, str):
        return json.dumps(json.loads(value)) if value.startswith('{"') else value
    return json.dumps(_shown(value), default=str)


def _shown(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(warnings=False)
    if isinstance(value, (str, type(None))):
        return value
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, dict):
        return {key: _shown(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shown(item) for item in value]
    return value.isoformat() if isinstance(value, date) else value


def schema(tool: Tool | Callable[..., Any], *, name: str | None = None) -> ToolSchema:
    """The function schema of a carrier tool."""
    definition = ToolDef(tool, name=name)
    return function_schema(
        name or definition.name,
        definition.description,
        definition.parameters.model_dump(exclude_none=True),
    )


def function_schema(name: str, description: str, parameters: Mapping[str, Any]) -> ToolSchema:
    """A schema from its parts."""
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def text_parameters(**descriptions: str) -> dict[str, Any]:
    """The parameters of a tool that takes text alone."""
    return {
        "type": "object",
        "properties": {
            name: {"type": "string", "description": text} for name, text in descriptions.items()
        },
        "required": list(descriptions),
    }


# Shared by airline, retail and mock: the carrier keeps them outside its toolkits.


def _calculate(self: Toolkit, expression: str) -> str:
    del self
    return calculate(expression)


def _transfer_to_human_agents(self: Toolkit, summary: str) -> str:
    del self, summary
    return "Transfer successful"


_calculate.__name__ = "calculate"
_transfer_to_human_agents.__name__ = "transfer_to_human_agents"
COMMON = (_calculate, _transfer_to_human_agents)
"""``calculate`` and ``transfer_to_human_agents``."""
