"""Dialects: the text formats in which models write tool calls.

A dialect formats a message as its models do, parses what they wrote, and has instructions on how to
write a call for chat templates without tool support. A parsed call has no id unless the model wrote
one; the agent assigns ids to the others.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from typing_extensions import override

from grpo_cl.policy.chat.tool_call_parser import (
    CallKeys,
    ParsedReply,
    parse_after_marker,
    parse_json_lines,
    parse_tagged,
    parsed_reply,
)
from grpo_cl.registry import pick
from grpo_cl.types import Message, ToolCall, ToolSchema


class Dialect(ABC):
    """One text format of tool calls."""

    name: ClassVar[str]
    markers: ClassVar[tuple[str, ...]]
    """Strings that only this dialect uses; a tokenizer or template with one of them uses it."""
    instructions: ClassVar[str]
    """Tells the model how to write a call."""
    result: ClassVar[str] = "Tool result: {}"
    """Format of a tool result in a user message, for templates without a tool role."""

    @abstractmethod
    def parse(self, text: str) -> ParsedReply:
        """The content and the calls of a reply; never raises."""

    @abstractmethod
    def format_calls(self, calls: Sequence[ToolCall]) -> str:
        """The calls as a model should write them."""

    def format_message(self, message: Message) -> str:
        """An assistant message as a model should write it."""
        calls = self.format_calls(message.tool_calls) if message.tool_calls else ""
        return "\n".join(part for part in (message.content or "", calls) if part)

    def describe_tools(self, tools: Sequence[ToolSchema]) -> str:
        """The tool schemas and instructions for a system message."""
        schemas = "\n".join(json.dumps(_function(tool), ensure_ascii=False) for tool in tools)
        return f"These are your tools, one JSON schema per line:\n{schemas}\n\n{self.instructions}"

    def format_results(self, results: Sequence[str]) -> str:
        """Tool results as the text of a user message."""
        return "\n".join(self.result.replace("{}", result) for result in results)


class Hermes(Dialect):
    """One JSON object per call between tags, as Hermes and Qwen models write it."""

    name = "hermes"
    markers = ("<tool_call>",)
    instructions = (
        "To call a tool, write its name and arguments as JSON between tags:\n"
        '<tool_call>\n{"name": "…", "arguments": {…}}\n</tool_call>\n'
        "The answer comes back between <tool_response> tags."
    )
    result = "<tool_response>\n{}\n</tool_response>"

    @override
    def parse(self, text: str) -> ParsedReply:
        return parse_tagged(text, "<tool_call>", "</tool_call>", CallKeys())

    @override
    def format_calls(self, calls: Sequence[ToolCall]) -> str:
        return "\n".join(f"<tool_call>\n{self._format(call)}\n</tool_call>" for call in calls)

    def _format(self, call: ToolCall) -> str:
        text = _dumps({"name": call.name, "arguments": call.arguments})
        # A tag inside a string would end the call too early.
        return text.replace("<", "\\u003c") if "tool_call>" in text else text


class Mistral(Dialect):
    """A JSON list after a marker, as Mistral models write it."""

    name = "mistral"
    markers = ("[TOOL_CALLS]",)
    instructions = (
        "To call tools, write [TOOL_CALLS] and a JSON list of names and arguments:\n"
        '[TOOL_CALLS] [{"name": "…", "arguments": {…}}]'
    )

    @override
    def parse(self, text: str) -> ParsedReply:
        return parse_after_marker(text, "[TOOL_CALLS]", CallKeys())

    @override
    def format_calls(self, calls: Sequence[ToolCall]) -> str:
        return f"[TOOL_CALLS] {_dumps([self._format(call) for call in calls])}"

    def _format(self, call: ToolCall) -> dict[str, Any]:
        fields = {"name": call.name, "arguments": call.arguments}
        return {**fields, "id": call.id} if call.id else fields


class Llama(Dialect):
    """Bare JSON with ``parameters``, as Llama 3.1 writes it; content precedes a marker."""

    name = "llama"
    markers = ("<|python_tag|>",)
    instructions = (
        "To call a tool, write nothing but its name and its arguments as JSON:\n"
        '{"name": "…", "parameters": {…}}\n'
        "Several calls are separated by semicolons."
    )
    _keys = CallKeys(arguments=("parameters", "arguments"), needs_arguments=True)

    @override
    def parse(self, text: str) -> ParsedReply:
        before, _, after = text.partition("<|python_tag|>")
        content, calls = parse_json_lines(after, self._keys)
        if not calls:
            return parse_json_lines(text, self._keys)
        return parsed_reply([before, "\n", content], calls)

    @override
    def format_calls(self, calls: Sequence[ToolCall]) -> str:
        return "; ".join(
            _dumps({"name": call.name, "parameters": call.arguments}) for call in calls
        )

    @override
    def format_message(self, message: Message) -> str:
        if not message.content or not message.tool_calls:
            return super().format_message(message)
        return f"{message.content}<|python_tag|>{self.format_calls(message.tool_calls)}"


class PlainJSON(Dialect):
    """JSON objects on lines of their own, for models without a format of their own."""

    name = "json"
    markers = ()
    instructions = (
        "To call a tool, write its name and arguments as JSON on a line of its own:\n"
        '{"name": "…", "arguments": {…}}'
    )
    _keys = CallKeys(name=("name", "tool"), needs_arguments=True)

    @override
    def parse(self, text: str) -> ParsedReply:
        return parse_json_lines(text, self._keys)

    @override
    def format_calls(self, calls: Sequence[ToolCall]) -> str:
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
