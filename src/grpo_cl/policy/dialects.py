"""The ways in which models write tool calls.

A dialect writes a message as its models do, reads what they wrote, and says in words how to write a
call, for chat templates that know nothing of tools. A call that was read has no id unless the model
wrote one; whoever keeps the conversation gives the rest theirs.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from typing_extensions import override

from grpo_cl.domains.base import ToolSchema
from grpo_cl.policy.parsing import Keys, Parsed, as_parsed, read_after, read_lines, read_tagged
from grpo_cl.registry import pick
from grpo_cl.types import Message, ToolCall


class Dialect(ABC):
    """How calls stand in a reply."""

    name: ClassVar[str]
    marks: ClassVar[tuple[str, ...]]
    """Texts that only this dialect uses; a tokenizer or template that knows one speaks it."""
    rule: ClassVar[str]
    """What a model is told about writing a call."""
    result: ClassVar[str] = "Tool result: {}"
    """How a tool's answer is shown where there is no role for it."""

    @abstractmethod
    def read(self, text: str) -> Parsed:
        """The content and the calls of a reply; never raises."""

    @abstractmethod
    def write_calls(self, calls: Sequence[ToolCall]) -> str:
        """The calls as a model should write them."""

    def write(self, message: Message) -> str:
        """An assistant message as a model should write it."""
        calls = self.write_calls(message.tool_calls) if message.tool_calls else ""
        return "\n".join(part for part in (message.content or "", calls) if part)

    def describe(self, tools: Sequence[ToolSchema]) -> str:
        """The tools and how to call them, for a system message."""
        schemas = "\n".join(json.dumps(_function(tool), ensure_ascii=False) for tool in tools)
        return f"These are your tools, one JSON schema per line:\n{schemas}\n\n{self.rule}"

    def show(self, results: Sequence[str]) -> str:
        """Tools' answers as the text of a user message."""
        return "\n".join(self.result.replace("{}", result) for result in results)


class Hermes(Dialect):
    """One JSON object between tags, as Hermes and Qwen write it."""

    name = "hermes"
    marks = ("<tool_call>",)
    rule = (
        "To call a tool, write its name and arguments as JSON between tags:\n"
        '<tool_call>\n{"name": "…", "arguments": {…}}\n</tool_call>\n'
        "The answer comes back between <tool_response> tags."
    )
    result = "<tool_response>\n{}\n</tool_response>"

    @override
    def read(self, text: str) -> Parsed:
        return read_tagged(text, "<tool_call>", "</tool_call>", Keys())

    @override
    def write_calls(self, calls: Sequence[ToolCall]) -> str:
        return "\n".join(f"<tool_call>\n{self._write(call)}\n</tool_call>" for call in calls)

    def _write(self, call: ToolCall) -> str:
        written = _dumps({"name": call.name, "arguments": call.arguments})
        # A tag inside a string would end the call too early.
        return written.replace("<", "\\u003c") if "tool_call>" in written else written


class Mistral(Dialect):
    """A JSON list after a mark, as Mistral's models write it."""

    name = "mistral"
    marks = ("[TOOL_CALLS]",)
    rule = (
        "To call tools, write [TOOL_CALLS] and a JSON list of names and arguments:\n"
        '[TOOL_CALLS] [{"name": "…", "arguments": {…}}]'
    )

    @override
    def read(self, text: str) -> Parsed:
        return read_after(text, "[TOOL_CALLS]", Keys())

    @override
    def write_calls(self, calls: Sequence[ToolCall]) -> str:
        return f"[TOOL_CALLS] {_dumps([self._write(call) for call in calls])}"

    def _write(self, call: ToolCall) -> dict[str, Any]:
        written = {"name": call.name, "arguments": call.arguments}
        return {**written, "id": call.id} if call.id else written


class Llama(Dialect):
    """Bare JSON with ``parameters``, as Llama 3.1 writes it; text stands before a mark."""

    name = "llama"
    marks = ("<|python_tag|>",)
    rule = (
        "To call a tool, write nothing but its name and its arguments as JSON:\n"
        '{"name": "…", "parameters": {…}}\n'
        "Several calls are separated by semicolons."
    )
    _keys = Keys(arguments=("parameters", "arguments"), needs_arguments=True)

    @override
    def read(self, text: str) -> Parsed:
        before, _, after = text.partition("<|python_tag|>")
        content, calls = read_lines(after, self._keys)
        if not calls:
            return read_lines(text, self._keys)
        return as_parsed([before, "\n", content], calls)

    @override
    def write_calls(self, calls: Sequence[ToolCall]) -> str:
        return "; ".join(
            _dumps({"name": call.name, "parameters": call.arguments}) for call in calls
        )

    @override
    def write(self, message: Message) -> str:
        if not message.content or not message.tool_calls:
            return super().write(message)
        return f"{message.content}<|python_tag|>{self.write_calls(message.tool_calls)}"


class PlainJSON(Dialect):
    """JSON objects on lines of their own, for models that were taught nothing else."""

    name = "json"
    marks = ()
    rule = (
        "To call a tool, write its name and arguments as JSON on a line of its own:\n"
        '{"name": "…", "arguments": {…}}'
    )
    _keys = Keys(name=("name", "tool"), needs_arguments=True)

    @override
    def read(self, text: str) -> Parsed:
        return read_lines(text, self._keys)

    @override
    def write_calls(self, calls: Sequence[ToolCall]) -> str:
        return "\n".join(_dumps({"name": call.name, "arguments": call.arguments}) for call in calls)


DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect for dialect in (Hermes(), Mistral(), Llama(), PlainJSON())
}


def dialect_named(name: str) -> Dialect:
    """The dialect of that name."""
    return pick(DIALECTS, name, kind="dialect")


def _function(tool: ToolSchema) -> Any:
    return tool.get("function", tool)


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
