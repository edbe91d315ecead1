"""Prompts, completions, and the protocols of chat models and API clients."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from pydantic import NonNegativeInt

from grpo_cl.types import Message, Record, ToolCall, ToolSchema


class ResponseSchema(NamedTuple):
    """The JSON schema of a structured reply."""

    name: str
    schema: Mapping[str, Any]


class Prompt(NamedTuple):
    """The input of one model call; the model is the assistant of ``messages`` in every role."""

    system: str
    messages: Sequence[Message]
    tools: Sequence[ToolSchema] = ()
    response_schema: ResponseSchema | None = None

    def digest(self, **settings: object) -> str:
        """SHA-256 of the prompt and of ``settings``, which together determine the reply."""
        content = {
            "system": self.system,
            "messages": [message.model_dump(mode="json") for message in self.messages],
            "tools": self.tools,
            "form": self.response_schema and self.response_schema._asdict(),
            "settings": settings,
        }
        text = json.dumps(content, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()


class Completion(Record):
    """The output of one model call."""

    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    broken: str | None = None
    """Why the reply cannot be used: it or one of its tool calls is cut off or malformed."""
    input_tokens: NonNegativeInt = 0
    output_tokens: NonNegativeInt = 0

    @property
    def text(self) -> str:
        """The content and the tool calls as text."""
        calls = [f"{call.name}({json.dumps(call.arguments)})" for call in self.tool_calls]
        return "\n".join(part for part in (self.content, *calls) if part)


class Reply(NamedTuple):
    """A completion with its time, retries and cost."""

    completion: Completion
    digest: str
    seconds: float = 0.0
    retries: int = 0
    cost: float = 0.0
    is_cached: bool = False


class GenerationParams(NamedTuple):
    """Sampling parameters of a model call."""

    temperature: float
    max_tokens: int


class Failure(NamedTuple):
    """An attempt without a completion."""

    reason: str
    is_transient: bool
    """Whether a retry may succeed."""
    is_auth_failure: bool = False
    """Whether the endpoint rejects the API key."""
    retry_after_s: float = 0.0
    """The pause that the endpoint asks for."""


class Client(Protocol):
    """A connection to one model; each call is one attempt without retries."""

    async def generate(self, prompt: Prompt, params: GenerationParams, *, seed: int) -> Completion:
        """One attempt; the provider's exceptions are not caught."""
        ...

    def failure(self, error: BaseException) -> Failure:
        """Classify an exception raised by ``generate``."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class ChatModel(Protocol):
    """A chat model that answers prompts: a hosted model or the policy."""

    @property
    def name(self) -> str:
        """The model's name in results."""
        ...

    async def reply(self, prompt: Prompt, *, seed: int) -> Reply:
        """The model's reply; raises ``ModelCallError`` if the model gives none."""
        ...

    def forget(self, digest: str) -> None:
        """Drop a reply from the cache; the next same prompt is sent to the model."""
        ...


_ROLE_NAMES = {"assistant": "Agent", "user": "Customer", "tool": "Tool", "system": "System"}


def format_transcript(messages: Sequence[Message]) -> str:
    """The conversation as text, one line per message, with tool calls and results."""
    return "\n".join(f"{_ROLE_NAMES[message.role]}: {_format(message)}" for message in messages)


def _format(message: Message) -> str:
    calls = [f"[calls {c.name}({json.dumps(c.arguments)})]" for c in message.tool_calls or ()]
    return " ".join(part for part in (message.content, *calls) if part)
