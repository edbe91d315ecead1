"""Tools that are described by Inspect: those of τ²-bench in inspect-evals, and a user's own.

Importing Inspect takes seconds, so only domains and files with such tools import this module.
"""

from collections.abc import Callable
from typing import Any

from inspect_ai.tool import Tool, ToolDef
from inspect_ai.tool import ToolError as InspectToolError

from grpo_cl.envs.toolkit import function_schema
from grpo_cl.types import ToolSchema

INSPECT_ERRORS = (InspectToolError,)
"""The exceptions by which a tool of Inspect reports a wrong call."""


def schema(tool: Tool | Callable[..., Any], *, name: str | None = None) -> ToolSchema:
    """The function schema of an Inspect tool, or of a function with a docstring."""
    definition = ToolDef(tool, name=name)
    return function_schema(
        name or definition.name,
        definition.description,
        definition.parameters.model_dump(exclude_none=True),
    )
