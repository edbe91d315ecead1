"""Inspect's model API: prompts to its messages, its outputs to completions.

Importing Inspect takes seconds, so this module is imported when the first model is opened.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

from inspect_ai._util.error import PrerequisiteError
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    GenerateConfig,
    ModelOutput,
    ModelUsage,
    ResponseSchema,
    RetryDecision,
    get_model,
)
from inspect_ai.tool import ToolCall as InspectCall
from inspect_ai.tool import ToolInfo
from inspect_ai.util import JSONSchema
from tenacity import RetryError

from grpo_cl.domains.base import ToolSchema
from grpo_cl.errors import ConfigError
from grpo_cl.models.prompt import Completion, Failure, Form, Manner, Prompt
from grpo_cl.types import Message, ToolCall

MOCK_TEXT = "Default output from mockllm/model"


def _mock(messages: list[ChatMessage], *rest: object) -> ModelOutput:
    """The mock model's answer with its usage, which Inspect would count by a table from the web."""
    del rest
    output = ModelOutput.from_content("mockllm", MOCK_TEXT)
    read, written = sum(len(m.text.split()) for m in messages), len(MOCK_TEXT.split())
    usage = ModelUsage(input_tokens=read, output_tokens=written, total_tokens=read + written)
    return output.model_copy(update={"usage": usage})


_CLIENTS: dict[str, dict[str, Any]] = {
    "openai": {"max_retries": 0},
    # Not every server knows strict tools, and τ²'s schemas leave objects open.
    "openai-api": {"max_retries": 0, "strict_tools": False},
    "anthropic": {"max_retries": 0},
    "mockllm": {"custom_outputs": _mock},
}
"""Retries are ours, so those of the providers' clients are turned off."""


_MARKUP = re.compile(r"\[/?\w+\]")
"""Inspect dresses its complaints for a terminal."""

REASON = 300
"""Characters of a provider's error that are kept."""

_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError)
"""What Inspect and the clients raise over a reply that is not what was asked for."""

CONNECTIONS = 1024
"""Inspect's own limit, out of the way: ours is ``models.concurrency``."""


class InspectClient:
    """A model that Inspect knows by name."""

    def __init__(self, name: str, base_url: str | None) -> None:
        try:
            self._model = get_model(
                name, base_url=base_url, memoize=False, **_CLIENTS.get(name.split("/")[0], {})
            )
        except (PrerequisiteError, ValueError) as error:
            raw = str(error.message if isinstance(error, PrerequisiteError) else error)
            reason = " ".join(_MARKUP.sub("", raw).split())
            raise ConfigError(
                f"cannot open the model {name!r}: {reason}; see docs/users.md"
            ) from error

    async def generate(self, prompt: Prompt, manner: Manner, *, seed: int) -> Completion:
        """One attempt; whatever the provider raises comes through."""
        config = GenerateConfig(
            max_retries=0,
            temperature=manner.temperature,
            max_tokens=manner.max_tokens,
            seed=seed,
            max_connections=CONNECTIONS,
            response_schema=_response_schema(prompt.form) if prompt.form else None,
        )
        messages = [ChatMessageSystem(content=prompt.system), *_messages(prompt.messages)]
        tools = _tools(prompt.tools)
        output = await self._model.generate(messages, tools=tools, config=config, cache=False)
        return _completion(output)

    def failure(self, error: BaseException) -> Failure:
        """What an error of ``generate`` means."""
        # Inspect wraps what its provider raised; only that says what happened.
        if isinstance(error, (RetryError, RuntimeError)) and error.__cause__:
            error = error.__cause__
        reason = f"{type(error).__name__}: {str(error).strip()[:REASON]}"
        if not isinstance(error, Exception):
            return Failure(reason, is_transient=False)
        decision = self._model.api.should_retry(error)
        pause_s = decision.retry_after if isinstance(decision, RetryDecision) else None
        return Failure(
            reason,
            is_transient=bool(decision) or isinstance(error, _UNREADABLE),
            is_refused=self._model.api.is_auth_failure(error),
            pause_s=pause_s or 0.0,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._model.api.aclose()


def _response_schema(form: Form) -> ResponseSchema:
    schema = JSONSchema.model_validate(form.schema)
    return ResponseSchema(name=form.name, json_schema=schema, strict=True)


def _messages(messages: Iterable[Message]) -> list[ChatMessage]:
    written: list[ChatMessage] = []
    names: dict[str | None, str] = {}
    for message in messages:
        calls = [
            InspectCall(id=call.id, function=call.name, arguments=dict(call.arguments))
            for call in message.tool_calls or ()
        ]
        names |= {call.id: call.function for call in calls}
        text = message.content or ""
        if message.role == "assistant":
            written.append(ChatMessageAssistant(content=text, tool_calls=calls or None))
        elif message.role == "tool":
            name = names.get(message.id)
            written.append(ChatMessageTool(content=text, tool_call_id=message.id, function=name))
        else:
            written.append(ChatMessageUser(content=text))
    return written


def _tools(schemas: Iterable[ToolSchema]) -> list[ToolInfo]:
    return [ToolInfo.model_validate(schema["function"]) for schema in schemas]


def _completion(output: ModelOutput) -> Completion:
    message = output.choices[0].message
    usage = output.usage
    if usage is None:
        usage = ModelUsage()
    read = (usage.input_tokens, usage.input_tokens_cache_read, usage.input_tokens_cache_write)
    return Completion(
        content=message.text,
        tool_calls=tuple(_call(call) for call in message.tool_calls or ()),
        input_tokens=sum(count or 0 for count in read),
        output_tokens=usage.output_tokens,
    )


def _call(call: InspectCall) -> ToolCall:
    # Through JSON: what the model wrote may hold values that are no JSON of ours.
    arguments: dict[str, Any] = json.loads(json.dumps(call.arguments, default=str))
    return ToolCall(id=call.id, name=call.function, arguments=arguments)
