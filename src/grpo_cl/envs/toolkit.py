"""Toolkits: the tools of the agent or the user, bound to the database of one episode."""

import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from types import FunctionType
from typing import Any, ClassVar

from pydantic import BaseModel

from grpo_cl.envs.calculator import calculate
from grpo_cl.envs.database import EpisodeDatabase
from grpo_cl.errors import ToolError
from grpo_cl.types import ToolSchema

TOOL_FAILURES = (
    ToolError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Errors of a wrong tool call; τ²-bench shows the text of any exception to the agent."""


class Toolkit:
    """Tools over one episode's database."""

    tools: ClassVar[frozenset[str]] = frozenset()
    """Names of the tools; other methods serve initial states and assertions."""
    writes: ClassVar[frozenset[str]] = frozenset()
    """The tools that may change the database."""
    state: ClassVar[Mapping[str, Callable[[], Any]]] = {}
    """Factories of attributes that last as long as the episode, besides the database."""
    errors: ClassVar[tuple[type[Exception], ...]] = ()
    """Another package's exceptions of a wrong call; the caller gets ``ToolError`` instead."""

    def __init__(self, db: EpisodeDatabase) -> None:
        self.db: Any = db
        for name, factory in self.state.items():
            setattr(self, name, factory())

    def use(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Call a tool; raises one of ``TOOL_FAILURES`` if the call is wrong."""
        if name not in self.tools:
            raise ToolError(f"Tool '{name}' not found.")
        return self.run(name, arguments)

    def run(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Call any public function, including those that are not tools."""
        function = None if name.startswith("_") else vars(type(self)).get(name)
        if function is None:
            raise ToolError(f"Function '{name}' not found.")
        with warnings.catch_warnings():
            # Tools store arguments of a wrong type unchecked; pydantic warns when it dumps them.
            warnings.simplefilter("ignore")
            try:
                return function(self, **arguments)
            except self.errors as error:
                raise ToolError(str(error)) from error


def build_toolkit(
    source: type[BaseModel],
    *,
    name: str,
    tools: Iterable[str],
    writes: Iterable[str],
    overrides: Iterable[Callable[..., Any]] = (),
    errors: tuple[type[Exception], ...] = (),
) -> type[Toolkit]:
    """A toolkit with the functions of ``source``; ``overrides`` are added or replace them.

    ``source`` is a toolkit class of ``inspect-evals`` or has the same layout. The functions get
    ``name`` as their class name, so that Python's errors about missing or extra arguments have the
    same text as in τ²-bench.
    """
    members: dict[str, Any] = {
        key: _with_owner(member, name) if isinstance(member, FunctionType) else member
        for key, member in vars(source).items()
        if isinstance(member, (FunctionType, property)) and not key.startswith("__")
    }
    members |= {function.__name__: _with_owner(function, name) for function in overrides}
    members["tools"] = frozenset(tools)
    members["writes"] = frozenset(writes)
    members["errors"] = errors
    members["state"] = {
        field: info.default_factory or info.get_default
        for field, info in source.model_fields.items()
        if field not in {"db", "store", "instance", "initialized"}
    }
    return type(name, (Toolkit,), members)


def _with_owner(function: Any, owner: str) -> FunctionType:
    renamed = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    renamed.__kwdefaults__ = function.__kwdefaults__
    renamed.__doc__ = function.__doc__
    renamed.__annotations__ = function.__annotations__
    renamed.__qualname__ = f"{owner}.{function.__name__}"
    return renamed


def render(value: Any) -> str:
    """A tool's return value as τ²-bench shows it to the caller.

    Numbers directly inside a dict or list become strings, numbers inside records stay numbers. Text
    is unchanged, except that a JSON object gets the spacing of ``json.dumps``.
    """
    if isinstance(value, str):
        return json.dumps(json.loads(value)) if value.startswith('{"') else value
    return json.dumps(_to_displayed(value), default=str)


def _to_displayed(value: Any) -> Any:
    if isinstance(value, (str, type(None))):
        return value
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, dict):
        return {key: _to_displayed(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_displayed(item) for item in value]
    if isinstance(value, BaseModel):
        return value.model_dump(warnings=False)
    return value.isoformat() if isinstance(value, date) else value


def function_schema(name: str, description: str, parameters: Mapping[str, Any]) -> ToolSchema:
    """A function schema from its name, description and parameters."""
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def text_parameters(**descriptions: str) -> dict[str, Any]:
    """The parameter schema of a tool whose arguments are all required strings."""
    return {
        "type": "object",
        "properties": {
            name: {"type": "string", "description": text} for name, text in descriptions.items()
        },
        "required": list(descriptions),
    }


# inspect-evals defines these two tools outside its toolkit classes.


def _calculate(self: Toolkit, expression: str) -> str:
    del self
    return calculate(expression)


def _transfer_to_human_agents(self: Toolkit, summary: str) -> str:
    del self, summary
    return "Transfer successful"


_calculate.__name__ = "calculate"
_transfer_to_human_agents.__name__ = "transfer_to_human_agents"
COMMON_TOOLS = (_calculate, _transfer_to_human_agents)
"""``calculate`` and ``transfer_to_human_agents``."""
