"""Completions as the JSON of OpenAI's API."""

import json
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from grpo_cl.types import Message

Decode = Callable[[Sequence[int]], str]


class GeneratedReply(NamedTuple):
    """A completion and which of its details the client asked for."""

    model: str
    version: int
    prompt_ids: Sequence[int]
    ids: Sequence[int]
    logprobs: Sequence[float]
    finish_reason: str
    num_cached: int
    """Prompt tokens that were in the KV cache."""
    has_ids: bool
    has_logprobs: bool


def find_stop(
    ids: Sequence[int], stop_strings: Sequence[str], decode: Decode
) -> tuple[int, str] | None:
    """The number of ids up to the first stop string and the text before it; None without one."""
    text = decode(ids)
    if not any(stop in text for stop in stop_strings):
        return None
    for count in range(1, len(ids) + 1):
        text = decode(ids[:count])
        positions = [text.index(stop) for stop in stop_strings if stop in text]
        if positions:
            return count, text[: min(positions)]
    return None


def text_response(
    reply: GeneratedReply, text: str, decode: Decode, prompt_logprobs: Sequence[float] | None
) -> dict[str, Any]:
    """The response of ``/v1/completions``."""
    choice: dict[str, Any] = {
        "index": 0,
        "text": text,
        "finish_reason": reply.finish_reason,
        "logprobs": _text_logprobs(reply, decode) if reply.has_logprobs else None,
        "prompt_logprobs": None,
    }
    if reply.has_ids:
        choice |= {"prompt_token_ids": list(reply.prompt_ids), "token_ids": list(reply.ids)}
    if prompt_logprobs is not None:
        pairs = zip(reply.prompt_ids[1:], prompt_logprobs, strict=True)
        entries = [{str(token): {"logprob": logprob}} for token, logprob in pairs]
        choice["prompt_logprobs"] = [None, *entries]
    return {**_envelope(reply, "cmpl", "text_completion"), "choices": [choice]}


def chat_response(reply: GeneratedReply, message: Message, decode: Decode) -> dict[str, Any]:
    """The response of ``/v1/chat/completions``."""
    fields: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.tool_calls:
        fields["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for call in message.tool_calls
        ]
    has_calls = bool(message.tool_calls) and reply.finish_reason == "stop"
    choice: dict[str, Any] = {
        "index": 0,
        "message": fields,
        "finish_reason": "tool_calls" if has_calls else reply.finish_reason,
        "logprobs": _chat_logprobs(reply, decode) if reply.has_logprobs else None,
    }
    envelope = _envelope(reply, "chatcmpl", "chat.completion")
    if reply.has_ids:
        choice["token_ids"] = list(reply.ids)
        envelope["prompt_token_ids"] = list(reply.prompt_ids)
    return {**envelope, "choices": [choice]}


def with_unique_call_ids(message: Message) -> Message:
    """The message with call ids that are unique among all replies."""
    if not message.tool_calls:
        return message
    calls = tuple(
        call.model_copy(update={"id": f"call_{uuid.uuid4().hex[:24]}"})
        for call in message.tool_calls
    )
    return message.model_copy(update={"tool_calls": calls})


def _envelope(reply: GeneratedReply, prefix: str, kind: str) -> dict[str, Any]:
    num_prompt, num_completion = len(reply.prompt_ids), len(reply.ids)
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": reply.model,
        "system_fingerprint": f"weights-{reply.version}",
        "usage": {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_completion,
            "total_tokens": num_prompt + num_completion,
            "prompt_tokens_details": {"cached_tokens": reply.num_cached},
        },
    }


def _text_logprobs(reply: GeneratedReply, decode: Decode) -> dict[str, Any]:
    tokens = [decode([token]) for token in reply.ids]
    offsets = [0]
    for token in tokens:
        offsets.append(offsets[-1] + len(token))
    return {
        "tokens": tokens,
        "token_logprobs": list(reply.logprobs),
        "top_logprobs": None,
        "text_offset": offsets[:-1],
    }


def _chat_logprobs(reply: GeneratedReply, decode: Decode) -> dict[str, Any]:
    tokens = [decode([token]) for token in reply.ids]
    content = [
        {"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": []}
        for token, logprob in zip(tokens, reply.logprobs, strict=True)
    ]
    return {"content": content}
