"""Messages as OpenAI's chat completions write them, and back."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_cl.rollout import Scene
from grpo_cl.rows import BEGIN
from grpo_cl.types import Message, ToolCall

ChatMessage = dict[str, Any]


def opening(scene: Scene, messages: Sequence[Message]) -> list[ChatMessage]:
    """What the policy reads before its first reply."""
    said = [written(message) for message in messages]
    if not any(message.role == "user" for message in messages):
        # Chat templates want a user's message.
        said.append({"role": "user", "content": BEGIN})
    return [{"role": "system", "content": scene.system}, *said] if scene.system else said


def written(message: Message) -> ChatMessage:
    """A message as a client sends it."""
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.id, "content": message.content or ""}
    plain: ChatMessage = {"role": message.role, "content": message.content or ""}
    if message.tool_calls:
        plain["tool_calls"] = [_written_call(call) for call in message.tool_calls]
    return plain


def read(reply: Mapping[str, Any]) -> Message:
    """A server's reply; never raises for what it says."""
    calls = tuple(_read_call(call) for call in reply.get("tool_calls") or ())
    content = (reply.get("content") or "").strip()
    return Message(role="assistant", content=content or None, tool_calls=calls or None)


def _written_call(call: ToolCall) -> ChatMessage:
    function = {"name": call.name, "arguments": json.dumps(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def _read_call(call: Mapping[str, Any]) -> ToolCall:
    function = call["function"]
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except (ValueError, RecursionError):
        arguments = {}  # the tool then says what it misses, which the policy can read
    known = arguments if isinstance(arguments, dict) else {}
    return ToolCall(id=call.get("id") or "", name=function["name"], arguments=known)
