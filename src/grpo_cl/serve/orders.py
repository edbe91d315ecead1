"""What clients ask for: JSON bodies read, checked, and answered with a sentence where wrong."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from grpo_cl.errors import GRPOCLError
from grpo_cl.types import Message, ToolCall

MAX_STOPS = 16
"""Stop strings of one request."""

_NEUTRAL: Mapping[str, Sequence[object]] = {
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
    "response_format": (None, {"type": "text"}),
    "tool_choice": (None, "auto", "none"),
}
"""Fields that would change a reply in ways not served, and the values that change nothing."""


class RequestError(GRPOCLError):
    """A request that cannot be answered; the client is told why."""

    def __init__(self, message: str, *, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Order(BaseModel):
    """What every request for a reply may say; fields of other servers are passed over."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    """Whether only ``stop_token_ids`` and ``stop`` end a reply."""
    return_token_ids: bool = False

    @property
    def stops(self) -> list[str]:
        """The strings before which the text of a reply ends."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(given) > MAX_STOPS or not all(given):
            raise RequestError(f"stop takes at most {MAX_STOPS} strings, none of them empty")
        return given


class TextOrder(Order):
    """A body of ``/v1/completions``."""

    prompt: str | list[int] | list[list[int]]
    logprobs: Annotated[int, Field(ge=0, le=1)] | None = None
    """0 and 1 are alike: the log-probs of the tokens that were drawn."""
    prompt_logprobs: Annotated[int, Field(ge=0, le=1)] | None = None


class _Part(BaseModel):
    type: Literal["text"]
    text: str


class _Function(BaseModel):
    name: str
    arguments: str = "{}"


class _Call(BaseModel):
    id: str = ""
    function: _Function


class ChatMessage(BaseModel):
    """One message of a chat."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """What it says."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""

    @property
    def is_system(self) -> bool:
        """Whether it tells the model what to be."""
        return self.role in ("system", "developer")

    def read(self) -> Message:
        """The message as episodes know it."""
        assert self.role not in ("system", "developer")
        calls = tuple(_read_call(call) for call in self.tool_calls or ())
        return Message(
            role=self.role, content=self.text, tool_calls=calls or None, id=self.tool_call_id
        )


class Tool(BaseModel):
    """A function the model may call."""

    type: Literal["function"] = "function"
    function: dict[str, Any]


class ChatOrder(Order):
    """A body of ``/v1/chat/completions``."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    tools: list[Tool] | None = None
    tool_choice: str | None = None
    logprobs: bool | None = None


class ReloadArguments(BaseModel):
    """What ``reload_weights`` takes."""

    weights_path: Path


class Reload(BaseModel):
    """A body of ``/collective_rpc``; one method is served."""

    method: Literal["reload_weights"]
    kwargs: ReloadArguments


class LoadAdapter(BaseModel):
    """A body of ``/v1/load_lora_adapter``."""

    lora_name: Annotated[str, Field(pattern=r"^[\w][\w.-]{0,127}$")]
    lora_path: Path
    load_inplace: bool = False


class UnloadAdapter(BaseModel):
    """A body of ``/v1/unload_lora_adapter``."""

    lora_name: str


class NewVersion(BaseModel):
    """A body of ``/update_weight_version``."""

    new_version: NonNegativeInt


Body = TypeVar("Body", bound=BaseModel)


def read_body(kind: type[Body], raw: bytes) -> Body:
    """The body, or a sentence about the first thing that is wrong with it."""
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise RequestError("the body must be a JSON object")
    for name, harmless in _NEUTRAL.items():
        if found.get(name) not in harmless:
            raise RequestError(f"{name}={found[name]!r} is not served here; leave it out")
    try:
        return kind.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RequestError(f"{place}: {first['msg']}") from error


def _read_call(call: _Call) -> ToolCall:
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"the arguments of the call of {call.function.name!r} are no JSON: {error}"
        ) from error
    if not isinstance(arguments, dict):
        raise RequestError(f"the arguments of {call.function.name!r} must be a JSON object")
    return ToolCall(id=call.id, name=call.function.name, arguments=arguments)
