"""Request bodies: JSON parsing and validation with readable error messages."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from reprlib import repr as short_repr
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    ValidationError,
)

from grpo_cl.errors import GRPOCLError
from grpo_cl.types import Message, ToolCall

MAX_STOP_STRINGS = 16
"""Most stop strings of one request."""
MAX_TOKENS = 1 << 20
"""Largest ``max_tokens``; the free context limits a completion further."""
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-3, 100.0
"""Of a request that is not greedy: logits divided by a smaller temperature overflow."""
MAX_DEPTH = 64
"""Most nested arrays and objects in the JSON of a request."""

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

_NO_EFFECT: Mapping[str, Sequence[object]] = {
    "stream": (None, False),
    "n": (None, 1),
    "best_of": (None, 1),
    "echo": (None, False),
    "suffix": (None, ""),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "logit_bias": (None, {}),
    "top_k": (None, 0, -1),
    "min_p": (None, 0),
    "min_tokens": (None, 0),
    "top_logprobs": (None, 0),
    "tool_choice": (None, "auto", "none"),
}
"""Unsupported fields, and their values that have no effect and are accepted."""


class RequestError(GRPOCLError):
    """A request that cannot be served; the message and status are sent to the client."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        """The field that is wrong."""


def _check_temperature(value: float) -> float:
    if value and not MIN_TEMPERATURE <= value <= MAX_TEMPERATURE:
        raise ValueError(
            f"must be 0, which is greedy, or from {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}"
        )
    return value


def _check_stop(stop: str | list[str]) -> str | list[str]:
    strings = [stop] if isinstance(stop, str) else stop
    if len(strings) > MAX_STOP_STRINGS or not all(strings):
        raise ValueError(f"takes at most {MAX_STOP_STRINGS} strings, none of them empty")
    return stop


def _check_function(function: dict[str, Any]) -> dict[str, Any]:
    name, parameters = function.get("name"), function.get("parameters", {})
    if not isinstance(name, str) or not name or not isinstance(parameters, dict):
        raise ValueError("has a name, which is a string, and parameters, which are a JSON schema")
    return function


_TokenCount = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
_Item = TypeVar("_Item")
_Items = Annotated[list[_Item], Field(fail_fast=True)]
"""A list of any length, of which one wrong item is reported: a million errors take seconds."""


class CompletionRequest(BaseModel):
    """The fields that all completion requests share; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)

    model: str | None = None
    temperature: Annotated[float, AfterValidator(_check_temperature)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: _TokenCount | None = None
    max_completion_tokens: _TokenCount | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    stop: Annotated[str | _Items[str], AfterValidator(_check_stop)] | None = None
    stop_token_ids: _Items[int] | None = None
    ignore_eos: bool = False
    """Whether only ``stop_token_ids`` and ``stop`` end a completion."""
    return_token_ids: bool = False

    @property
    def stop_strings(self) -> list[str]:
        """Strings that end a completion; its text ends before them."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class TextCompletionRequest(CompletionRequest):
    """The body of ``/v1/completions``."""

    response_format: None = None
    prompt: str | _Items[int] | _Items[_Items[int]]
    logprobs: Annotated[int, Field(ge=0, le=1)] | None = None
    """0 and 1 both return the log-probs of the sampled tokens only."""
    prompt_logprobs: Annotated[int, Field(ge=0, le=1)] | None = None


class _TextPart(BaseModel):
    type: Literal["text"]
    text: str


class _FunctionCall(BaseModel):
    name: str
    arguments: str = "{}"


class _RequestCall(BaseModel):
    id: str = ""
    function: _FunctionCall


class RequestMessage(BaseModel):
    """One message of a chat request."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | _Items[_TextPart] | None = None
    tool_calls: _Items[_RequestCall] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """The content as one string."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""

    @property
    def is_system(self) -> bool:
        """Whether its role is ``system`` or ``developer``."""
        return self.role in ("system", "developer")

    def to_message(self) -> Message:
        """The message as the type that chat formats take."""
        assert self.role not in ("system", "developer")
        calls = tuple(_to_tool_call(call) for call in self.tool_calls or ())
        return Message(
            role=self.role, content=self.text, tool_calls=calls or None, id=self.tool_call_id
        )


class RequestTool(BaseModel):
    """A function that the model may call."""

    type: Literal["function"] = "function"
    function: Annotated[dict[str, Any], AfterValidator(_check_function)]


class _JsonSchema(BaseModel):
    name: str = ""
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class ResponseFormat(BaseModel):
    """The form of a reply."""

    type: Literal["text", "json_schema"]
    json_schema: _JsonSchema | None = None

    @property
    def schema_of_reply(self) -> dict[str, Any] | None:
        """The JSON schema of the reply; None for text."""
        if self.type == "text":
            return None
        if self.json_schema is None:
            raise RequestError(
                "response_format of type json_schema has a field json_schema with the schema",
                param="response_format",
            )
        return self.json_schema.schema_


class ChatCompletionRequest(CompletionRequest):
    """The body of ``/v1/chat/completions``."""

    messages: Annotated[_Items[RequestMessage], Field(min_length=1)]
    tools: _Items[RequestTool] | None = None
    tool_choice: str | None = None
    logprobs: bool | None = None
    response_format: ResponseFormat | None = None


class ReloadKwargs(BaseModel):
    """The arguments of ``reload_weights``."""

    weights_path: Path


class ReloadRequest(BaseModel):
    """The body of ``/collective_rpc``; one method is served."""

    method: Literal["reload_weights"]
    kwargs: ReloadKwargs


class LoadAdapterRequest(BaseModel):
    """The body of ``/v1/load_lora_adapter``."""

    lora_name: Annotated[str, Field(pattern=r"^[\w][\w.-]{0,127}$")]
    lora_path: Path
    load_inplace: bool = False


class UnloadAdapterRequest(BaseModel):
    """The body of ``/v1/unload_lora_adapter``."""

    lora_name: str


class VersionRequest(BaseModel):
    """The body of ``/update_weight_version``."""

    new_version: NonNegativeInt


Body = TypeVar("Body", bound=BaseModel)

_UNIONS: Mapping[str, str] = {
    "prompt": "must be a string or a list of token ids",
    "stop": "must be a string or a list of strings",
    "content": "must be a string or a list of parts of type text",
}
"""Fields with several types, of which a validation error names only the first."""


def parse_body(kind: type[Body], raw: bytes) -> Body:
    """The validated body; a ``RequestError`` names the first field that is wrong."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise RequestError(
            f"the body is not UTF-8: {error.reason} at byte {error.start}"
        ) from error
    fields = _read_json(text, "the body")
    if not isinstance(fields, dict):
        raise RequestError("the body must be a JSON object")
    for name, allowed in _NO_EFFECT.items():
        if not _is_one_of(fields.get(name), allowed):
            value = short_repr(fields[name])
            raise RequestError(f"{name}={value} is not served; leave it out", param=name)
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise _field_error(fields, error) from error


def _read_json(text: str, what: str) -> Any:
    """The value of ``text``; refused if the tokenizer or a chat template could not process it."""
    try:
        value = json.loads(text, parse_constant=_reject_constant)
    except RecursionError as error:
        raise RequestError(f"{what} nests more than {MAX_DEPTH} levels deep") from error
    except ValueError as error:
        reason = str(error).partition(";")[0]  # after it, advice on a setting of Python
        raise RequestError(f"{what} is not JSON: {reason}") from error
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        inner: list[Any] = []
        for item in level:
            inner += _contents(item, what)
        if not inner:
            return value
        level = inner
    raise RequestError(f"{what} nests more than {MAX_DEPTH} levels deep")


def _contents(item: Any, what: str) -> Sequence[Any]:
    """The items directly inside ``item``; raises for text and numbers that cannot be encoded."""
    if isinstance(item, dict):
        return [*item.keys(), *item.values()]
    if isinstance(item, list):
        return item
    if isinstance(item, str) and _LONE_SURROGATE.search(item):
        raise RequestError(f"{what} has a lone surrogate (\\ud800 to \\udfff), which is no text")
    if isinstance(item, float) and not math.isfinite(item):
        raise RequestError(f"{what} has a number that is too large for a float")
    return ()


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _is_one_of(value: Any, allowed: Sequence[object]) -> bool:
    """Whether ``value`` is in ``allowed``; in contrast to ``==``, True is not 1."""
    return any(
        value == other and isinstance(value, bool) == isinstance(other, bool) for other in allowed
    )


def _field_error(fields: Mapping[str, Any], error: ValidationError) -> RequestError:
    first = error.errors(include_url=False)[0]
    value: Any = fields
    path: list[str] = []
    for part in first["loc"]:
        if isinstance(value, dict) and (part in value or first["type"] == "missing"):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int):
            value = value[part]
        else:
            break  # the name of a type in a union, not of a field
        path.append(str(part))
    is_union = len(path) < len(first["loc"])
    message = _UNIONS[path[-1]] if is_union else first["msg"].removeprefix("Value error, ")
    name = ".".join(path)
    return RequestError(f"{name}: {message} (got {short_repr(value)})", param=name)


def _to_tool_call(call: _RequestCall) -> ToolCall:
    what = f"function.arguments of the call of {call.function.name!r}"
    arguments = _read_json(call.function.arguments or "{}", what)
    if not isinstance(arguments, dict):
        raise RequestError(f"{what} must be a JSON object")
    return ToolCall(id=call.id, name=call.function.name, arguments=arguments)
