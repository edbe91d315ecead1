"""Requests that no client should send: ``grpo-cl serve`` answers each with 4xx and a sentence."""

import json
from collections.abc import Generator
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, ValidationError

from architectures import built, llama
from grpo_cl.serving.requests import (
    ChatCompletionRequest,
    RequestError,
    TextCompletionRequest,
    parse_body,
)
from serving import Served, served, word_policy

USER = {"role": "user", "content": "hello"}


@pytest.fixture(scope="module")
def server() -> Generator[Served]:
    with served(*word_policy(built(llama))) as running:
        yield running


def send(server: Served, path: str, content: bytes) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", content=content, timeout=60, trust_env=False)


def message_of(answer: httpx.Response) -> str:
    """The message of an answer in OpenAI's error format."""
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return error["message"]


ARGUMENTS: list[tuple[str, Any, str]] = [
    *[("max_tokens", value, "max_tokens: ") for value in (-1, 0, 10**30, 2.5, "5", True, [])],
    *[("max_completion_tokens", value, "max_completion_tokens: ") for value in (-1, 10**30)],
    *[("temperature", value, "temperature: ") for value in (-1, 1e-320, 1e-9, 101, "x", True)],
    *[("top_p", value, "top_p: ") for value in (0, -1, 2, "x", True)],
    *[("n", value, "is not served") for value in (0, -1, 2, True, "1")],
    *[("stop", value, "stop: ") for value in (5, [1], [""], "", ["a"] * 17, {}, [["a"]])],
    *[("stop_token_ids", value, "stop_token_ids") for value in ([-1], [50], [10**30], "5", ["1"])],
    *[("seed", value, "seed: ") for value in (10**40, -(10**40), 1.5, "1", True)],
    *[("prompt", value, "prompt") for value in (5, None, [True], ["1"], [1.0], [[1], 2], [[]], {})],
    *[("prompt", value, "a prompt has") for value in ([50], [-1], [10**30])],
    ("model", 5, "model: "),
    ("logprobs", True, "logprobs: "),
    ("prompt", "\ud800", "lone surrogate"),
    ("model", "\udfff", "lone surrogate"),
    ("stop", ["\ud800"], "lone surrogate"),
]


@pytest.mark.parametrize(("name", "value", "message"), ARGUMENTS)
def test_argument_is_refused_before_generation(server: Served, name: str, value: Any, message: str):
    body = {"prompt": [1], "max_tokens": 2, "ignore_eos": True, name: value}
    answer = send(server, "/v1/completions", json.dumps(body).encode())
    assert answer.status_code == 400
    assert message in message_of(answer)
    assert "\n" not in message_of(answer)


BODIES = [
    (b"", "is not JSON"),
    (b"\xff", "is not UTF-8"),
    ('{"prompt": [1]}'.encode("utf-16"), "is not UTF-8"),
    (b'{"prompt": "\xed\xa0\x80"}', "is not UTF-8"),  # an encoded surrogate
    (b'{"prompt": [1], "temperature": NaN}', "NaN is no JSON number"),
    (b'{"prompt": [1], "temperature": 1e400}', "too large for a float"),
    (b'{"prompt": [1], "max_tokens": ' + b"9" * 5000 + b"}", "4300 digits"),
    (b'{"prompt": ' + b"[" * 65 + b"]" * 65 + b"}", "more than 64 levels"),
    (b'{"prompt": [1], "user": ' + b"[" * 20_000 + b"]" * 20_000 + b"}", "more than 64 levels"),
    (b'{"prompt": [1], "\\ud800": 1}', "lone surrogate"),
]


@pytest.mark.parametrize(("body", "message"), BODIES)
def test_body_that_is_no_clean_json_is_refused(server: Served, body: bytes, message: str):
    for path in ("/v1/completions", "/v1/chat/completions", "/collective_rpc"):
        answer = send(server, path, body)
        assert answer.status_code == 400
        assert message in message_of(answer)


def chat_with_call(arguments: str, name: str = "f") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"messages": [USER, {"role": "assistant", "tool_calls": [{"function": function}]}]}


CHATS = [
    *[(chat_with_call('{"a":' + "[" * n + "]" * n + "}"), "64 levels") for n in (65, 300, 9000)],
    (chat_with_call('{"a": "\\ud800"}'), "lone surrogate"),
    (chat_with_call('{"a": NaN}'), "NaN is no JSON number"),
    (chat_with_call('{"a": 1e999}'), "too large for a float"),
    (chat_with_call("[]"), "must be a JSON object"),
    (chat_with_call("{}", name="\ud800"), "lone surrogate"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "lone surrogate"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content: must be a string or"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role: "),
    ({"messages": "hello"}, "messages: "),
    ({"messages": [5]}, "messages.0: "),
    ({"messages": [USER], "tools": [{"function": {}}]}, "tools.0.function: "),
    ({"messages": [USER], "tools": [{"function": {"name": 5}}]}, "tools.0.function: "),
    ({"messages": [USER], "tools": 5}, "tools: "),
]


@pytest.mark.parametrize(("body", "message"), CHATS)
def test_chat_that_cannot_be_rendered_is_refused(server: Served, body: Any, message: str):
    answer = send(server, "/v1/chat/completions", json.dumps(body).encode())
    assert answer.status_code == 400
    assert message in message_of(answer)


@pytest.mark.parametrize("path", ["/tmp/\0x", "/tmp/" + "x" * 5000, "~", ""])
def test_weights_path_that_is_no_path_is_refused(server: Served, path: str):
    body = {"method": "reload_weights", "kwargs": {"weights_path": path}}
    answer = send(server, "/collective_rpc", json.dumps(body).encode())
    assert answer.status_code in (400, 403)
    assert "weights_path" in message_of(answer)


def test_unknown_route_is_answered_in_the_error_format(server: Served):
    answer = send(server, "/v1/nowhere", b"{}")
    assert (answer.status_code, message_of(answer)) == (
        404,
        "POST '/v1/nowhere' is not served: Not Found",
    )


MANY = [
    (TextCompletionRequest, {"prompt": [""] * 1000}),
    (TextCompletionRequest, {"prompt": [[""] * 10] * 100}),
    (TextCompletionRequest, {"prompt": [1], "stop_token_ids": [""] * 1000}),
    (TextCompletionRequest, {"prompt": [1], "stop": [1] * 1000}),
    (ChatCompletionRequest, {"messages": [1] * 1000}),
    (ChatCompletionRequest, {"messages": [{}] * 1000}),
    (ChatCompletionRequest, {"messages": [{"role": "user", "content": [{}] * 1000}]}),
    (ChatCompletionRequest, {"messages": [{"role": "assistant", "tool_calls": [1] * 1000}]}),
    (ChatCompletionRequest, {"messages": [USER], "tools": [{}] * 1000}),
]


@pytest.mark.parametrize(("kind", "body"), MANY)
def test_one_of_many_wrong_items_is_reported(kind: type[BaseModel], body: Any):
    with pytest.raises(RequestError) as refusal:
        parse_body(kind, json.dumps(body).encode())
    errors = refusal.value.__cause__
    assert isinstance(errors, ValidationError)
    assert errors.error_count() < 5
