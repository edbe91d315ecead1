"""A user's own tools: Python functions that the agent can call beside the tools of a domain."""

import hashlib
import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from grpo_cl.envs.base import DONE, Domain
from grpo_cl.envs.inspect_tools import INSPECT_ERRORS, schema
from grpo_cl.envs.tau2 import Side, Tau2Domain
from grpo_cl.envs.toolkit import Toolkit
from grpo_cl.errors import ConfigError
from grpo_cl.registry import import_file
from grpo_cl.types import ToolSchema


class OwnTool(NamedTuple):
    """One function as a tool."""

    name: str
    method: Callable[..., Any]
    """The function as a method of a toolkit."""
    schema: ToolSchema
    uses_database: bool
    """Whether the first parameter is ``self``, whose ``db`` is the episode's database."""
    source: str


def add_tools(domain: Domain, source: str) -> Domain:
    """``domain`` with the tools of ``source``: a Python file, MODULE or MODULE:NAME."""
    if not isinstance(domain, Tau2Domain) or domain.scorer() is not None:
        raise ConfigError(
            f"domain {domain.name!r} takes no own tools, since its score does not depend on gold "
            f"actions; leave out tools={source!r} or choose another domain"
        )
    tools = load_tools(source)
    known = {tool["function"]["name"] for tool in domain.tools(solo=True)} | {DONE}
    if taken := sorted(known & {tool.name for tool in tools}):
        raise ConfigError(
            f"{source!r} defines {', '.join(taken)}, which domain {domain.name!r} has already; "
            "rename the function"
        )
    return _extended(domain, tools)


def _extended(domain: Tau2Domain, tools: Sequence[OwnTool]) -> Tau2Domain:
    side = domain.agent_side
    extended_side = Side(
        toolkit=_extended_toolkit(side.toolkit, tools),
        schemas=lambda: (*side.schemas(), *(tool.schema for tool in tools)),
        database=side.database,
    )
    digest = hashlib.sha256("".join(tool.source for tool in tools).encode()).hexdigest()
    release = f"{domain.release} with own tools sha256:{digest[:12]}"
    members = {
        "agent_side": extended_side,
        "release": property(lambda _: release),
        "own_tools": frozenset(tool.name for tool in tools),
    }
    extended = object.__new__(type(type(domain).__name__, (type(domain),), members))
    vars(extended).update(vars(domain))
    return extended


def _extended_toolkit(toolkit: type[Toolkit], tools: Sequence[OwnTool]) -> type[Toolkit]:
    # Copied: ``Toolkit.run`` looks functions up in the class itself, not in its bases.
    members = {name: value for name, value in vars(toolkit).items() if not name.startswith("__")}
    members |= {tool.name: tool.method for tool in tools}
    members["tools"] = toolkit.tools | {tool.name for tool in tools}
    members["errors"] = INSPECT_ERRORS
    members["writes"] = toolkit.writes | {tool.name for tool in tools if tool.uses_database}
    return type(toolkit.__name__, (toolkit,), members)


def load_tools(source: str) -> list[OwnTool]:
    """The tools of a file or module: its public functions, or those of NAME in MODULE:NAME."""
    functions = _functions(source)
    if not functions:
        raise ConfigError(f"{source!r} defines no public function, so it has no tools")
    return [_tool(function, source) for function in functions]


def _functions(source: str) -> list[FunctionType]:
    path, _, name = (source, "", "") if source.endswith(".py") else source.partition(":")
    module = _import(path)
    if name:
        if not hasattr(module, name):
            raise ConfigError(f"module {path!r} has no {name!r}; tools={source!r} names it")
        chosen = getattr(module, name)
        members = list(chosen) if isinstance(chosen, (list, tuple)) else [chosen]
        if not all(isinstance(member, FunctionType) for member in members):
            raise ConfigError(f"{source!r} must be a function or a list of functions")
        return members
    return [
        member
        for member in vars(module).values()
        if isinstance(member, FunctionType)
        and member.__module__ == module.__name__
        and not member.__name__.startswith("_")
    ]


def _import(path: str) -> ModuleType:
    try:
        return import_file(Path(path)) if path.endswith(".py") else import_module(path)
    except (OSError, SyntaxError, ImportError) as error:
        raise ConfigError(
            f"cannot import the tools {path!r}: {error}; give a Python file, MODULE or MODULE:NAME"
        ) from error


def _tool(function: FunctionType, source: str) -> OwnTool:
    parameters = list(inspect.signature(function).parameters.values())
    uses_database = bool(parameters) and parameters[0].name == "self"
    own = parameters[1:] if uses_database else parameters
    if problem := _problem(function, own):
        raise ConfigError(f"the function {function.__name__!r} of {source!r} is no tool: {problem}")

    def method(toolkit: Toolkit, **arguments: Any) -> Any:
        del toolkit
        return function(**arguments)

    described: Callable[..., Any] = MethodType(function, function) if uses_database else function
    return OwnTool(
        function.__name__,
        function if uses_database else method,
        schema(described, name=function.__name__),
        uses_database,
        inspect.getsource(function),
    )


def _problem(function: FunctionType, parameters: Sequence[inspect.Parameter]) -> str | None:
    if not function.__doc__:
        return "it has no docstring, which the agent reads"
    if inspect.iscoroutinefunction(function):
        return "it is async, and tools are plain functions"
    for parameter in parameters:
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            return f"the agent cannot fill {str(parameter)!r}; name the parameters"
        if parameter.annotation is parameter.empty:
            return f"the parameter {parameter.name!r} has no type hint"
    return None
