"""Replies as the API's JSON."""

import json
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from grpo_cl.types import Message

Decode = Callable[[Sequence[int]], str]


class Reply(NamedTuple):
    """What was written, and what is told of it."""

    model: str
    version: int
    prompt_ids: Sequence[int]
    ids: Sequence[int]
    logprobs: Sequence[float]
    reason: str
    shows_ids: bool
    shows_logprobs: bool


def cut(ids: Sequence[int], stops: Sequence[str], decode: Decode) -> tuple[int, str] | None:
    """How many ids it takes until a stop string is there, and the text before it; None if never."""
    text = decode(ids)
    if not any(stop in text for stop in stops):
        return None
    for count in range(1, len(ids) + 1):
        text = decode(ids[:count])
        places = [text.index(stop) for stop in stops if stop in text]
        if places:
            return count, text[: min(places)]
    return None


def text_reply(
    reply: Reply, text: str, decode: Decode, prompt_logprobs: Sequence[float] | None
) -> dict[str, Any]:
    """An answer of ``/v1/completions``."""
    choice: dict[str, Any] = {
        "index": 0,
        "text": text,
        "finish_reason": reply.reason,
        "logprobs": _text_logprobs(reply, decode) if reply.shows_logprobs else None,
        "prompt_logprobs": None,
    }
    if reply.shows_ids:
        choice |= {"prompt_token_ids": list(reply.prompt_ids), "token_ids": list(reply.ids)}
    if prompt_logprobs is not None:
        pairs = zip(reply.prompt_ids[1:], prompt_logprobs, strict=True)
        told = [{str(token): {"logprob": logprob}} for token, logprob in pairs]
        choice["prompt_logprobs"] = [None, *told]
    return {**_envelope(reply, "cmpl", "text_completion"), "choices": [choice]}


def chat_reply(reply: Reply, message: Message, decode: Decode) -> dict[str, Any]:
    """An answer of ``/v1/chat/completions``."""
    written: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.tool_calls:
        written["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for call in message.tool_calls
        ]
    has_called = bool(message.tool_calls) and reply.reason == "stop"
    choice: dict[str, Any] = {
        "index": 0,
        "message": written,
        "finish_reason": "tool_calls" if has_called else reply.reason,
        "logprobs": _chat_logprobs(reply, decode) if reply.shows_logprobs else None,
    }
    envelope = _envelope(reply, "chatcmpl", "chat.completion")
    if reply.shows_ids:
        choice["token_ids"] = list(reply.ids)
        envelope["prompt_token_ids"] = list(reply.prompt_ids)
    return {**envelope, "choices": [choice]}


def numbered(message: Message) -> Message:
    """The message with call ids that no other reply has."""
    if not message.tool_calls:
        return message
    calls = tuple(
        call.model_copy(update={"id": f"call_{uuid.uuid4().hex[:24]}"})
        for call in message.tool_calls
    )
    return message.model_copy(update={"tool_calls": calls})


def _envelope(reply: Reply, prefix: str, kind: str) -> dict[str, Any]:
    read, written = len(reply.prompt_ids), len(reply.ids)
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": reply.model,
        "system_fingerprint": f"weights-{reply.version}",
        "usage": {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        },
    }


def _text_logprobs(reply: Reply, decode: Decode) -> dict[str, Any]:
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


def _chat_logprobs(reply: Reply, decode: Decode) -> dict[str, Any]:
    tokens = [decode([token]) for token in reply.ids]
    content = [
        {"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": []}
        for token, logprob in zip(tokens, reply.logprobs, strict=True)
    ]
    return {"content": content}
