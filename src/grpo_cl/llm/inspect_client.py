"""Client over Inspect's model API: converts prompts to Inspect messages and outputs to completions.

Importing Inspect takes seconds, so this module is imported when the first model is opened.
"""

import json
import os
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
    RetryDecision,
    get_model,
)
from inspect_ai.model import ResponseSchema as InspectSchema
from inspect_ai.tool import ToolCall as InspectToolCall
from inspect_ai.tool import ToolInfo
from inspect_ai.util import JSONSchema
from tenacity import RetryError

from grpo_cl.errors import ConfigError, ModelCallError
from grpo_cl.llm.prompt import Completion, Failure, GenerationParams, Prompt, ResponseSchema
from grpo_cl.storage.redaction import hide
from grpo_cl.types import Message, ToolCall, ToolSchema

MOCK_TEXT = "Default output from mockllm/model"


def _mock(messages: list[ChatMessage], *rest: object) -> ModelOutput:
    """The mock model's output with its usage, for which Inspect would download a tokenizer."""
    del rest
    output = ModelOutput.from_content("mockllm", MOCK_TEXT)
    inputs, outputs = sum(len(m.text.split()) for m in messages), len(MOCK_TEXT.split())
    usage = ModelUsage(input_tokens=inputs, output_tokens=outputs, total_tokens=inputs + outputs)
    return output.model_copy(update={"usage": usage})


_CLIENT_OPTIONS: dict[str, dict[str, Any]] = {
    "openai": {"max_retries": 0},
    # Not every server supports strict tools, and τ²'s schemas allow additional properties.
    "openai-api": {"max_retries": 0, "strict_tools": False},
    "anthropic": {"max_retries": 0},
    "mockllm": {"custom_outputs": _mock},
}
"""By provider. ``HostedModel`` retries, so the retries of the providers' clients are turned off."""

_MARKUP = re.compile(r"\[/?\w+\]")
"""Rich markup in Inspect's error messages."""

MAX_REASON_LENGTH = 300
"""Characters of a provider's error that are kept."""

_MALFORMED_REPLY = (ValueError, TypeError, LookupError, AttributeError)
"""Errors that Inspect and the providers' clients raise for a malformed reply."""

_CUT_OFF = ("max_tokens", "model_length")
"""Inspect's stop reasons of a truncated reply."""
_REFUSED = ("model_length", "content_filter")
"""Inspect's stop reasons of a request that the endpoint refuses, as one that exceeds the context of
the model. The output has no usage, and the text of the error in place of a reply."""

MAX_CONNECTIONS = 1024
"""Above any ``models.concurrency``, which is the limit that counts: it holds over all models."""


class InspectClient:
    """One model of an Inspect provider, called without retries and without Inspect's cache."""

    def __init__(self, name: str, base_url: str | None) -> None:
        try:
            self._model = get_model(
                name,
                base_url=base_url,
                memoize=False,
                **_CLIENT_OPTIONS.get(name.split("/")[0], {}),
            )
        except (PrerequisiteError, ValueError) as error:
            raw = str(error.message if isinstance(error, PrerequisiteError) else error)
            reason = " ".join(_MARKUP.sub("", raw).split())
            raise ConfigError(
                f"cannot open the model {name!r}: {reason}; see docs/users.md"
            ) from error

    async def generate(self, prompt: Prompt, params: GenerationParams, *, seed: int) -> Completion:
        """One attempt; the provider's exceptions are not caught."""
        config = GenerateConfig(
            max_retries=0,
            temperature=params.temperature,
            max_tokens=params.max_tokens,
            seed=seed,
            max_connections=MAX_CONNECTIONS,
            response_schema=_inspect_schema(prompt.response_schema),
        )
        messages = [ChatMessageSystem(content=prompt.system), *_messages(prompt.messages)]
        tools = _tools(prompt.tools)
        output = await self._model.generate(messages, tools=tools, config=config, cache=False)
        choice = output.choices[0]
        if output.usage is None and choice.stop_reason in _REFUSED:
            raise ModelCallError(choice.message.text)
        return _completion(output)

    def failure(self, error: BaseException) -> Failure:
        """Classify an exception raised by ``generate``."""
        if isinstance(error, ModelCallError):
            return Failure(f"{error}"[:MAX_REASON_LENGTH], is_transient=False)
        # Inspect wraps the provider's exception, which has the details.
        if isinstance(error, (RetryError, RuntimeError)) and error.__cause__:
            error = error.__cause__
        text = hide(str(error).strip(), variables=os.environ)
        reason = f"{type(error).__name__}: {text[:MAX_REASON_LENGTH]}"
        if not isinstance(error, Exception):
            return Failure(reason, is_transient=False)
        decision = self._model.api.should_retry(error)
        retry_after_s = decision.retry_after if isinstance(decision, RetryDecision) else None
        return Failure(
            reason,
            is_transient=bool(decision) or isinstance(error, _MALFORMED_REPLY),
            is_auth_failure=self._model.api.is_auth_failure(error),
            retry_after_s=retry_after_s or 0.0,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._model.api.aclose()


def _inspect_schema(response: ResponseSchema | None) -> InspectSchema | None:
    if response is None:
        return None
    schema = JSONSchema.model_validate(response.schema)
    return InspectSchema(name=response.name, json_schema=schema, strict=True)


def _messages(messages: Iterable[Message]) -> list[ChatMessage]:
    converted: list[ChatMessage] = []
    names: dict[str | None, str] = {}
    for message in messages:
        calls = [
            InspectToolCall(id=call.id, function=call.name, arguments=dict(call.arguments))
            for call in message.tool_calls or ()
        ]
        names |= {call.id: call.function for call in calls}
        text = message.content or ""
        if message.role == "assistant":
            converted.append(ChatMessageAssistant(content=text, tool_calls=calls or None))
        elif message.role == "tool":
            name = names.get(message.id)
            converted.append(ChatMessageTool(content=text, tool_call_id=message.id, function=name))
        else:
            converted.append(ChatMessageUser(content=text))
    return converted


def _tools(schemas: Iterable[ToolSchema]) -> list[ToolInfo]:
    return [ToolInfo.model_validate(schema["function"]) for schema in schemas]


def _completion(output: ModelOutput) -> Completion:
    message = output.choices[0].message
    usage = output.usage
    if usage is None:
        usage = ModelUsage()
    inputs = (usage.input_tokens, usage.input_tokens_cache_read, usage.input_tokens_cache_write)
    return Completion(
        content=message.text,
        tool_calls=tuple(_call(call) for call in message.tool_calls or ()),
        broken=_problem(output),
        input_tokens=sum(count or 0 for count in inputs),
        output_tokens=usage.output_tokens,
    )


def _problem(output: ModelOutput) -> str | None:
    """Why the reply cannot be used; None if it can."""
    choice = output.choices[0]
    calls = choice.message.tool_calls or ()
    for call in calls:
        # Inspect gives such a call empty arguments.
        if call.parse_error:
            return f"its call of {call.function[:80]!r}: {call.parse_error[:MAX_REASON_LENGTH]}"
    if choice.stop_reason in _CUT_OFF and (calls or not choice.message.text):
        return "it is cut off at max_tokens, before the end of a tool call or before any text"
    return None


def _call(call: InspectToolCall) -> ToolCall:
    # Through JSON: Inspect's parser may return values that JSON cannot represent.
    arguments: dict[str, Any] = json.loads(json.dumps(call.arguments, default=str))
    return ToolCall(id=call.id, name=call.function, arguments=arguments)
