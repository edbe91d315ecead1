"""The routes: OpenAI's for replies, vLLM's for weights, pauses and versions."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from importlib.metadata import version as package_version
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from grpo_cl.serve.orders import (
    ChatOrder,
    LoadAdapter,
    NewVersion,
    Reload,
    RequestError,
    TextOrder,
    UnloadAdapter,
    read_body,
)
from grpo_cl.serve.service import Service

Answer = Callable[[Request], Awaitable[Any]]

GIVEN_UP = 499
"""What a log shows where the client went away; nobody reads the answer."""


class Rules(NamedTuple):
    """Whom and what a server answers."""

    api_key: str | None
    max_body: int
    """Bytes of a request."""


def make_app(service: Service, rules: Rules) -> Starlette:
    """The server's routes."""
    routes = Routes(service, rules)
    posts: dict[str, Answer] = {
        "/v1/chat/completions": routes.chat,
        "/v1/completions": routes.complete,
        "/v1/load_lora_adapter": routes.load_adapter,
        "/v1/unload_lora_adapter": routes.unload_adapter,
        "/collective_rpc": routes.reload,
        "/update_weight_version": routes.set_version,
        "/reset_prefix_cache": routes.forget,
        "/pause": routes.pause,
        "/resume": routes.resume,
    }
    gets: dict[str, Answer] = {
        "/v1/models": routes.models,
        "/version": routes.version,
        "/weight_info": routes.weight_info,
        "/is_paused": routes.is_paused,
    }
    return Starlette(
        routes=[
            Route("/health", _health, methods=["GET"]),
            *(Route(path, routes.answering(get), methods=["GET"]) for path, get in gets.items()),
            *(Route(path, routes.answering(p), methods=["POST"]) for path, p in posts.items()),
        ]
    )


class Routes:
    """What each route answers."""

    def __init__(self, service: Service, rules: Rules) -> None:
        self._service = service
        self._scribe = service.scribe
        self._weights = service.scribe.weights
        self._rules = rules

    def answering(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        """``answer`` as JSON, for those who may ask; a refused request is told why."""

        async def respond(request: Request) -> Response:
            try:
                self._admit(request)
                return JSONResponse(await answer(request))
            except RequestError as error:
                kind = "invalid_request_error" if error.status < 500 else "server_error"
                told = {"message": str(error), "type": kind, "param": None, "code": error.code}
                return JSONResponse({"error": told}, status_code=error.status)
            except ClientDisconnect:
                return Response(status_code=GIVEN_UP)

        return respond

    async def chat(self, request: Request) -> dict[str, Any]:
        """A reply to a chat."""
        order = read_body(ChatOrder, await self._body(request))
        return await _while_connected(request, self._service.chat(order))

    async def complete(self, request: Request) -> dict[str, Any]:
        """A reply to a prompt."""
        order = read_body(TextOrder, await self._body(request))
        return await _while_connected(request, self._service.complete(order))

    async def models(self, request: Request) -> dict[str, Any]:
        """What is served."""
        del request
        voices = self._weights.voices
        shared = {"object": "model", "created": 0, "owned_by": "grpo-cl"}
        context = voices.model.context
        data = [{"id": name, **shared, "max_model_len": context} for name in voices.names]
        return {"object": "list", "data": data}

    async def reload(self, request: Request) -> dict[str, Any]:
        """Replace all weights by those of a folder."""
        order = read_body(Reload, await self._body(request))
        folder = order.kwargs.weights_path
        await self._do(self._scribe.update(lambda: self._weights.reload(folder)))
        return {"results": [None]}

    async def load_adapter(self, request: Request) -> str:
        """Serve an adapter."""
        order = read_body(LoadAdapter, await self._body(request))

        def load() -> None:
            self._weights.load_adapter(
                order.lora_name, order.lora_path, in_place=order.load_inplace
            )

        await self._do(self._scribe.update(load))
        return f"Success: LoRA adapter '{order.lora_name}' added successfully."

    async def unload_adapter(self, request: Request) -> str:
        """Serve an adapter no more."""
        order = read_body(UnloadAdapter, await self._body(request))
        name = order.lora_name
        await self._do(self._scribe.update(lambda: self._weights.unload_adapter(name)))
        return f"Success: LoRA adapter '{name}' removed successfully."

    async def weight_info(self, request: Request) -> dict[str, Any]:
        """Which weights write now."""
        del request
        return {"weight_version": self._weights.version}

    async def set_version(self, request: Request) -> dict[str, Any]:
        """Call the weights of now by a number."""
        order = read_body(NewVersion, await self._body(request))
        self._weights.version = order.new_version
        return {"weight_version": order.new_version}

    async def forget(self, request: Request) -> dict[str, Any]:
        """Let go of cached prompts."""
        del request
        await self._do(self._scribe.forget())
        return {}

    async def pause(self, request: Request) -> dict[str, Any]:
        """Write nothing until told to go on."""
        mode = request.query_params.get("mode", "abort")
        await self._do(self._scribe.gate.pause(mode))
        return {"status": "paused"}

    async def resume(self, request: Request) -> dict[str, Any]:
        """Go on writing."""
        del request
        await self._do(self._scribe.gate.resume())
        return {"status": "resumed"}

    async def is_paused(self, request: Request) -> dict[str, Any]:
        """Whether requests wait."""
        del request
        return {"is_paused": self._scribe.gate.is_paused}

    async def version(self, request: Request) -> dict[str, Any]:
        """Which server this is."""
        del request
        return {"version": package_version("grpo-cl"), "server": "grpo-cl"}

    async def _do(self, work: Any) -> Any:
        return await asyncio.wrap_future(self._scribe.send(work))

    def _admit(self, request: Request) -> None:
        if "origin" in request.headers:
            # A page in somebody's browser could otherwise order a server on loopback about.
            raise RequestError("requests from web pages are not answered", status=403)
        if self._rules.api_key is not None:
            given = request.headers.get("authorization", "").encode()
            if not hmac.compare_digest(given, f"Bearer {self._rules.api_key}".encode()):
                raise RequestError("the API key is missing or wrong", status=401)

    async def _body(self, request: Request) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > self._rules.max_body:
                raise RequestError(
                    f"the body has more than {self._rules.max_body} bytes, which is the limit",
                    status=413,
                )
            parts.append(part)
        return b"".join(parts)


async def _health(request: Request) -> Response:
    del request
    return Response(status_code=200)


async def _while_connected(request: Request, work: Any) -> Any:
    """The result of ``work``, which is given up when nobody waits for it any more."""
    writing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not writing.done():
            raise ClientDisconnect
        if writing.cancelled():
            raise RequestError("the reply was given up by /pause; ask again", status=503)
        return writing.result()
    finally:
        leaving.cancel()
        writing.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass  # the body was read before; nothing else is worth waiting for
