"""What a chat model is given, and what comes back."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from pydantic import NonNegativeInt

from grpo_cl.domains.base import ToolSchema
from grpo_cl.types import Message, Record, ToolCall


class Form(NamedTuple):
    """The shape of an answer that a program reads."""

    name: str
    schema: Mapping[str, Any]
    """JSON schema of the object that is asked for."""


class Prompt(NamedTuple):
    """Everything a model is given; whoever it plays, it is the assistant in ``messages``."""

    system: str
    messages: Sequence[Message]
    tools: Sequence[ToolSchema] = ()
    form: Form | None = None

    def digest(self, **settings: object) -> str:
        """SHA-256 over the prompt and all else that a reply depends on."""
        whole = {
            "system": self.system,
            "messages": [message.model_dump(mode="json") for message in self.messages],
            "tools": self.tools,
            "form": self.form and self.form._asdict(),
            "settings": settings,
        }
        text = json.dumps(whole, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()


class Completion(Record):
    """What a model wrote."""

    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    input_tokens: NonNegativeInt = 0
    output_tokens: NonNegativeInt = 0

    @property
    def text(self) -> str:
        """The reply as people read it, its calls too."""
        calls = [f"{call.name}({json.dumps(call.arguments)})" for call in self.tool_calls]
        return "\n".join(part for part in (self.content, *calls) if part)


class Reply(NamedTuple):
    """A completion and what it took to get it."""

    completion: Completion
    digest: str
    seconds: float = 0.0
    retries: int = 0
    cost: float = 0.0
    is_cached: bool = False


class Manner(NamedTuple):
    """How a model writes."""

    temperature: float
    max_tokens: int


class Failure(NamedTuple):
    """An attempt that brought no completion."""

    reason: str
    is_transient: bool
    """Whether the same question may be answered later."""
    is_refused: bool = False
    """Whether the endpoint does not let us in at all."""
    pause_s: float = 0.0
    """How long the endpoint asks to be left alone."""


class Client(Protocol):
    """A connection to one model, which makes one attempt at a time."""

    async def generate(self, prompt: Prompt, manner: Manner, *, seed: int) -> Completion:
        """One attempt; whatever the provider raises comes through."""
        ...

    def failure(self, error: BaseException) -> Failure:
        """What an error of ``generate`` means."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class Speaker(Protocol):
    """A model that can be asked."""

    @property
    def name(self) -> str:
        """Which model it is, as results name it."""
        ...

    async def reply(self, prompt: Prompt, *, seed: int) -> Reply:
        """Its answer; raises ``ModelCallError`` where none is to be had."""
        ...
