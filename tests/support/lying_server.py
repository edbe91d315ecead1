"""A real rollout server on loopback that answers completions with what a good server cannot."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from typing import Any, Self

import httpx

from architectures import CONTEXT

Answer = dict[str, Any]
Lie = Callable[[dict[str, Any], Answer], object]
"""Maps a request body and a good answer to what is sent instead: a value for JSON, or bytes."""


class HungError(Exception):
    """Raised by a lie: the request is never answered."""


class RefusedError(Exception):
    """Raised by a lie: the request is answered with status 404."""


class LyingServer:
    """Presents itself as ``grpo-cl serve`` and loads any weights; completions are lies.

    With ``upstream`` the good answers, and those to all other requests, are that server's.
    """

    def __init__(self, lie: Lie, *, is_healthy: bool = True, upstream: str | None = None) -> None:
        self.requests: list[dict[str, Any]] = []
        """Bodies of the completion requests."""
        self._lie = lie
        self._is_healthy = is_healthy
        self._upstream = upstream
        self._client = httpx.Client(trust_env=False, timeout=60)
        self._over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._client.close()

    def _get(self, path: str) -> object:
        if path == "/health" and not self._is_healthy:
            raise HungError
        if self._upstream is not None:
            return self._client.get(f"{self._upstream}{path}").content
        models = {"data": [{"id": "liar", "max_model_len": CONTEXT}]}
        return models if path == "/v1/models" else {"version": "1", "server": "grpo-cl"}

    def _post(self, path: str, body: dict[str, Any]) -> object:
        good: Answer = honest_answer(body) if path == "/v1/completions" else {}
        if self._upstream is not None:
            good = self._client.post(f"{self._upstream}{path}", json=body).json()
        if path != "/v1/completions":
            return good
        self.requests.append(body)
        return self._lie(body, good)

    def _send_parts(self, file: BufferedIOBase, parts: Iterator[bytes]) -> None:
        """Send bytes in place of an answer, until the client closes the connection."""
        with suppress(OSError):
            for part in parts:
                file.write(part)
                if self._over.wait(0.001):
                    return

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:  # http.server's name
                self._answer(lambda: server._get(self.path))

            def do_POST(self) -> None:  # http.server's name
                raw = self.rfile.read(int(self.headers.get("content-length", 0)))
                self._answer(lambda: server._post(self.path, json.loads(raw or b"{}")))

            def _answer(self, make: Callable[[], object]) -> None:
                self.close_connection = True
                status, answer = 200, {}
                try:
                    answer = make()
                except HungError:
                    server._over.wait()
                    return
                except RefusedError:
                    status = 404
                if isinstance(answer, Iterator):
                    server._send_parts(self.wfile, answer)
                    return
                content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                with suppress(OSError):  # the client has given this server up
                    self.send_response(status)
                    self.send_header("content-length", str(len(content)))
                    self.send_header("connection", "close")
                    self.end_headers()
                    self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                del format, args

        return Handler


def honest_answer(body: dict[str, Any]) -> Answer:
    """An answer that a server could give: the same token again and again."""
    count, prompt = body["max_tokens"], body["prompt"]
    choice: Answer = {
        "finish_reason": "length",
        "token_ids": [7] * count,
        "logprobs": {"token_logprobs": [-1.0] * count},
    }
    if "prompt_logprobs" in body:
        entries = [{str(token): {"logprob": -1.0}} for token in prompt[1:]]
        choice["prompt_logprobs"] = [None, *entries]
    return {"choices": [choice], "system_fingerprint": "weights-1"}
