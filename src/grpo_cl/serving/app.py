"""HTTP routes: OpenAI's for completions, vLLM's for weights, pauses and versions."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from importlib.metadata import version as package_version
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from grpo_cl.errors import ConfigError, TaskDataError
from grpo_cl.serving.requests import (
    Body,
    ChatCompletionRequest,
    LoadAdapterRequest,
    ReloadRequest,
    RequestError,
    TextCompletionRequest,
    UnloadAdapterRequest,
    VersionRequest,
    parse_body,
)
from grpo_cl.serving.service import Service

Handler = Callable[[Request], Awaitable[Any]]

CLIENT_CLOSED_REQUEST = 499
"""Status in the log for a request whose client disconnected (nginx's code)."""


class AccessRules(NamedTuple):
    """Which requests a server accepts."""

    api_key: str | None
    max_body: int
    """Most bytes of a request body."""


def make_app(service: Service, rules: AccessRules) -> Starlette:
    """The ASGI application."""
    routes = Routes(service, rules)
    posts: dict[str, Handler] = {
        "/v1/chat/completions": routes.chat,
        "/v1/completions": routes.complete,
        "/v1/load_lora_adapter": routes.load_adapter,
        "/v1/unload_lora_adapter": routes.unload_adapter,
        "/collective_rpc": routes.reload,
        "/update_weight_version": routes.set_version,
        "/reset_prefix_cache": routes.reset_cache,
        "/pause": routes.pause,
        "/resume": routes.resume,
    }
    gets: dict[str, Handler] = {
        "/v1/models": routes.models,
        "/version": routes.version,
        "/weight_info": routes.weight_info,
        "/is_paused": routes.is_paused,
    }
    return Starlette(
        routes=[
            Route("/health", _health, methods=["GET"]),
            *(Route(path, routes.as_endpoint(get), methods=["GET"]) for path, get in gets.items()),
            *(
                Route(path, routes.as_endpoint(post), methods=["POST"])
                for path, post in posts.items()
            ),
        ],
        exception_handlers={HTTPException: _on_http_error, Exception: _on_failure},
    )


class Routes:
    """The handlers of the routes."""

    def __init__(self, service: Service, rules: AccessRules) -> None:
        self._service = service
        self._worker = service.worker
        self._weights = service.worker.weights
        self._rules = rules

    def as_endpoint(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """``handler`` with authentication, a JSON response and JSON errors."""

        async def respond(request: Request) -> Response:
            try:
                self._authenticate(request)
                return JSONResponse(await handler(request))
            except RequestError as error:
                return _error_response(error)
            except (ConfigError, TaskDataError) as error:  # weights, a chat template, a toy signal
                return _error_response(RequestError(str(error)))
            except ClientDisconnect:
                return Response(status_code=CLIENT_CLOSED_REQUEST)

        return respond

    async def chat(self, request: Request) -> dict[str, Any]:
        """A chat completion."""
        body = await self._body(ChatCompletionRequest, request, limit=self._service.max_body)
        return await _while_connected(request, self._service.chat(body))

    async def complete(self, request: Request) -> dict[str, Any]:
        """A completion of a prompt."""
        body = await self._body(TextCompletionRequest, request, limit=self._service.max_body)
        return await _while_connected(request, self._service.complete(body))

    async def models(self, request: Request) -> dict[str, Any]:
        """The served models."""
        del request
        pool = self._weights.pool
        shared = {"object": "model", "created": 0, "owned_by": "grpo-cl"}
        context = pool.model.context
        data = [{"id": name, **shared, "max_model_len": context} for name in pool.names]
        return {"object": "list", "data": data}

    async def reload(self, request: Request) -> dict[str, Any]:
        """Load all weights from a folder."""
        body = await self._body(ReloadRequest, request)
        folder = body.kwargs.weights_path
        await self._run(self._worker.update(lambda: self._weights.reload(folder)))
        return {"results": [None]}

    async def load_adapter(self, request: Request) -> str:
        """Load an adapter."""
        body = await self._body(LoadAdapterRequest, request)

        def load() -> None:
            self._weights.load_adapter(body.lora_name, body.lora_path, in_place=body.load_inplace)

        await self._run(self._worker.update(load))
        return f"Success: LoRA adapter '{body.lora_name}' added successfully."

    async def unload_adapter(self, request: Request) -> str:
        """Unload an adapter."""
        body = await self._body(UnloadAdapterRequest, request)
        name = body.lora_name
        await self._run(self._worker.update(lambda: self._weights.unload_adapter(name)))
        return f"Success: LoRA adapter '{name}' removed successfully."

    async def weight_info(self, request: Request) -> dict[str, Any]:
        """The version of the weights."""
        del request
        return {"weight_version": self._weights.version}

    async def set_version(self, request: Request) -> dict[str, Any]:
        """Set the version of the weights."""
        body = await self._body(VersionRequest, request)
        self._weights.version = body.new_version
        return {"weight_version": body.new_version}

    async def reset_cache(self, request: Request) -> dict[str, Any]:
        """Drop all cached sequences."""
        del request
        await self._run(self._worker.reset_cache())
        return {}

    async def pause(self, request: Request) -> dict[str, Any]:
        """Hold requests back until ``/resume``."""
        mode = request.query_params.get("mode", "abort")
        await self._run(self._worker.gate.pause(mode))
        return {"status": "paused"}

    async def resume(self, request: Request) -> dict[str, Any]:
        """Serve requests again."""
        del request
        await self._run(self._worker.gate.resume())
        return {"status": "resumed"}

    async def is_paused(self, request: Request) -> dict[str, Any]:
        """Whether requests are held back."""
        del request
        return {"is_paused": self._worker.gate.is_paused}

    async def version(self, request: Request) -> dict[str, Any]:
        """The name and version of this server."""
        del request
        return {"version": package_version("grpo-cl"), "server": "grpo-cl"}

    async def _run(self, coroutine: Any) -> Any:
        return await asyncio.wrap_future(self._worker.submit(coroutine))

    def _authenticate(self, request: Request) -> None:
        if "origin" in request.headers:
            # Otherwise any web page open in a browser could control a server on loopback.
            raise RequestError("requests from web pages are rejected", status=403)
        if self._rules.api_key is not None:
            header = request.headers.get("authorization", "").encode()
            if not hmac.compare_digest(header, f"Bearer {self._rules.api_key}".encode()):
                raise RequestError("the API key is missing or wrong", status=401)

    async def _body(self, kind: type[Body], request: Request, *, limit: int | None = None) -> Body:
        """The validated body; parsed in a thread, since a long one takes seconds."""
        raw = await self._content(request, limit=limit)
        return await asyncio.to_thread(parse_body, kind, raw)

    async def _content(self, request: Request, *, limit: int | None) -> bytes:
        most = min(limit or self._rules.max_body, self._rules.max_body)
        parts: list[bytes] = []
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise RequestError(
                    f"the body has more than {most} bytes, which is the limit of this route; "
                    "shorten it (the limit depends on the context length and on --max_body_mib)",
                    status=413,
                )
            parts.append(part)
        return b"".join(parts)


def _error_response(error: RequestError) -> Response:
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    body = {"message": str(error), "type": kind, "param": error.param, "code": error.code}
    return JSONResponse({"error": body}, status_code=error.status)


async def _on_http_error(request: Request, error: Exception) -> Response:
    """An unknown route or method."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path!r} is not served: {error.detail}"
    return _error_response(RequestError(message, status=error.status_code))


async def _on_failure(request: Request, error: Exception) -> Response:
    """A defect of this server; its log has the traceback."""
    del request
    message = f"the server failed with {type(error).__name__}; its log says where"
    return _error_response(RequestError(message, status=500))


async def _health(request: Request) -> Response:
    del request
    return Response(status_code=200)


async def _while_connected(request: Request, coroutine: Any) -> Any:
    """The result of ``coroutine``, which is cancelled when the client disconnects."""
    generating = asyncio.ensure_future(coroutine)
    disconnecting = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({generating, disconnecting}, return_when=asyncio.FIRST_COMPLETED)
        if not generating.done():
            raise ClientDisconnect
        if generating.cancelled():
            raise RequestError("the request was aborted by /pause; send it again", status=503)
        return generating.result()
    finally:
        disconnecting.cancel()
        generating.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass  # the body was read before; only a disconnect can follow
