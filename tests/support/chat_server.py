"""A real OpenAI-compatible server on loopback that can inject the faults of real servers."""

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self

Fault = Literal["429", "500", "401", "400", "silence", "garbage", "truncated", "empty", "odd"]
Body = Mapping[str, Any]
Answer = Callable[[Body], str | Mapping[str, Any]]
"""Maps a request body to the reply's text, or to a whole assistant message, which may hold the
``finish_reason`` of the choice."""

SILENCE_S = 1.0
"""Longer than any test waits for an answer."""


class ChatServer:
    """Answers chat completions; the n-th request gets the n-th fault, unless that is None."""

    def __init__(
        self, answer: Answer, faults: Iterable[Fault | None] = (), *, reports_usage: bool = True
    ) -> None:
        self._reports_usage = reports_usage
        self.requests: list[Body] = []
        self.most_at_once = 0
        self.times: list[float] = []
        self._answer = answer
        self._faults = iter(faults)
        self._lock = threading.Lock()
        self._busy = 0
        self._over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def seeds(self) -> list[int]:
        return [body["seed"] for body in self.requests]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def respond(self, body: Body) -> tuple[int, dict[str, str], bytes]:
        with self._lock:
            self.requests.append(body)
            self.times.append(time.monotonic())
            fault = next(self._faults, None)
            self._busy += 1
            self.most_at_once = max(self.most_at_once, self._busy)
        try:
            return self._faulty(fault) if fault else self._good(body)
        finally:
            with self._lock:
                self._busy -= 1

    def _good(self, body: Body) -> tuple[int, dict[str, str], bytes]:
        answer = self._answer(body)
        message = {"content": answer} if isinstance(answer, str) else answer
        reply = completion(body, message)
        if not self._reports_usage:
            del reply["usage"]
        return 200, {}, json.dumps(reply).encode()

    def _faulty(self, fault: Fault) -> tuple[int, dict[str, str], bytes]:
        if fault == "silence":
            self._over.wait(SILENCE_S)
            return 200, {}, b""
        if fault.isdigit():
            wait = {"retry-after": "0"} if fault == "429" else {}
            error = {"error": {"message": f"made to fail with {fault}", "code": fault}}
            return int(fault), wait, json.dumps(error).encode()
        whole = json.dumps(completion({"model": "m", "messages": []}, {"content": "half"}))
        bodies = {
            "garbage": "<html>the gateway is sorry</html>",
            "truncated": whole[: len(whole) // 2],
            "empty": "",
            "odd": '{"id": "x", "object": "chat.completion", "choices": null}',
        }
        return 200, {}, bodies[fault].encode()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:  # http.server's name
                length = int(self.headers["content-length"])
                status, headers, content = server.respond(json.loads(self.rfile.read(length)))
                try:
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.send_header("content-type", "application/json")
                    self.send_header("content-length", str(len(content)))
                    self.send_header("connection", "close")
                    self.end_headers()
                    self.wfile.write(content)
                except OSError:
                    pass  # the client timed out
                self.close_connection = True

            def log_message(self, format: str, *args: object) -> None:
                del format, args

        return Handler


def completion(body: Body, message: Mapping[str, Any]) -> dict[str, Any]:
    """A chat completion with one choice; a token is a word."""
    num_prompt = sum(len(str(entry.get("content") or "").split()) for entry in body["messages"])
    num_completion = len(str(message.get("content") or "").split())
    finish_reason = "tool_calls" if message.get("tool_calls") else "stop"
    content = {name: value for name, value in message.items() if name != "finish_reason"}
    return {
        "id": "reply",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [
            {
                "index": 0,
                "finish_reason": message.get("finish_reason", finish_reason),
                "message": {"role": "assistant", "content": None, **content},
            }
        ],
        "usage": {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_completion,
            "total_tokens": num_prompt + num_completion,
        },
    }


def calling(name: str, arguments: Mapping[str, Any], number: int = 0) -> dict[str, Any]:
    """An assistant message that calls a tool."""
    return calling_text(name, json.dumps(arguments), number)


def calling_text(name: str, arguments: str, number: int = 0) -> dict[str, Any]:
    """An assistant message that calls a tool; ``arguments`` need not be valid JSON."""
    function = {"name": name, "arguments": arguments}
    return {"tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}]}


def form_of(body: Body) -> str | None:
    """The name of the JSON schema that a request asks for."""
    response_format = body.get("response_format")
    return response_format["json_schema"]["name"] if response_format else None
