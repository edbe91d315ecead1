"""Servers that write for a policy: vLLM or ``grpo-cl serve``, token ids in and out.

What is expected of vLLM (docs/serving.md): release 0.20 or later, started with
``VLLM_SERVER_DEV_MODE=1`` (for ``/pause``, ``/resume``, ``/collective_rpc`` and
``/reset_prefix_cache``), with ``--logprobs-mode processed_logprobs`` (so that log-probs are at the
temperature the tokens were drawn with) and, for LoRA, with ``--enable-lora`` and
``VLLM_ALLOW_RUNTIME_LORA_UPDATING=1``.
"""

import asyncio
import logging
import re
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx

from grpo_cl.errors import ConfigError, EngineError
from grpo_cl.models.line import Line

T = TypeVar("T")

OLDEST_VLLM = (0, 20)
ADAPTER = "grpo-cl-policy"
"""What the policy's adapter is called on a server."""
PAUSES_S = (0.1, 0.5, 2.0)
"""Waits between the attempts to reach a server before it counts as lost."""
REPLY_S = 600.0
"""Until a reply, or the loading of weights, is given up."""
CONNECT_S = 5.0

_RETRIED = frozenset({429, 500, 502, 503, 504})
_LOG = logging.getLogger(__name__)


class UnreachableError(EngineError):
    """A server that does not answer, or not sensibly; another may."""


class Server:
    """One server, and what is known about it."""

    def __init__(self, url: str, key: str | None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.base = ""
        """What its own weights are called."""
        self.model = ""
        """What the weights that write for the policy are called there."""
        self.context = 0
        self.load = 0
        """Requests under way."""
        self.is_lost = False
        self.fingerprint: str | None = None
        """How a ``grpo-cl serve`` calls the weights that were proved; None for others."""
        self._is_own = False
        self._client = httpx.AsyncClient(
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(REPLY_S, connect=CONNECT_S, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=256),
            trust_env=False,  # a proxy of the machine's is for other addresses
        )

    async def greet(self) -> None:
        """Learn what it is and serves; one of no use is refused."""
        found = await self._json("GET", "/version")
        self._is_own = found.get("server") == "grpo-cl"
        if not self._is_own:
            _require_vllm(self.url, str(found.get("version", "")))
        served = (await self._json("GET", "/v1/models"))["data"][0]
        self.base = self.model = str(served["id"])
        self.context = int(served["max_model_len"])

    async def complete(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The one choice of ``/v1/completions``, asked for again where that may help."""
        self.load += 1
        try:
            for pause_s in PAUSES_S:
                try:
                    return await self._choice(body)
                except UnreachableError:
                    if self.is_lost:
                        raise
                    await asyncio.sleep(pause_s)
            return await self._choice(body)
        finally:
            self.load -= 1

    async def push(self, folder: Path, *, is_adapter: bool) -> None:
        """Write with the weights of ``folder`` from now on, and with nothing cached before."""
        self.fingerprint = None
        if is_adapter:
            body = {"lora_name": ADAPTER, "lora_path": str(folder), "load_inplace": True}
            await self._send("POST", "/v1/load_lora_adapter", body)
            await self._send("POST", "/reset_prefix_cache")
            self.model = ADAPTER
            return
        await self._send("POST", "/pause?mode=wait")
        try:
            body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
            await self._send("POST", "/collective_rpc", body)
            await self._send("POST", "/reset_prefix_cache")
        finally:
            await self._send("POST", "/resume")

    async def probe(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """A reply by which the weights of now are known."""
        answer = await self._json("POST", "/v1/completions", {**body, "model": self.model})
        if self._is_own:
            self.fingerprint = answer["system_fingerprint"]
        return answer["choices"][0]

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _choice(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        answer = await self._json("POST", "/v1/completions", {**body, "model": self.model})
        if self.fingerprint and answer["system_fingerprint"] != self.fingerprint:
            raise UnreachableError(f"{self.url} has been started anew and has other weights")
        choice = answer["choices"][0]
        if choice["finish_reason"] == "abort":
            raise UnreachableError(f"{self.url} gave a reply up")
        return choice

    async def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        response = await self._send(method, path, body)
        try:
            return response.json()
        except ValueError as error:
            raise UnreachableError(f"{self.url}{path} answers no JSON") from error

    async def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> httpx.Response:
        try:
            response = await self._client.request(method, f"{self.url}{path}", json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = f"{type(error).__name__} {error}".strip()
            raise UnreachableError(f"{self.url} does not answer: {reason}") from error
        if response.status_code in _RETRIED:
            raise UnreachableError(_told(self.url, path, response))
        if response.is_error:
            raise EngineError(_told(self.url, path, response))
        return response


class Fleet:
    """Servers with the same weights; the loss of one is survived."""

    def __init__(self, urls: Sequence[str], *, key: str | None = None) -> None:
        self.servers = [Server(url, key) for url in urls]
        self._line = Line()
        self._homes: dict[int, Server] = {}
        self._last_words = ""

    def open(self) -> None:
        """Greet all servers; at the start of a run none may be absent."""
        try:
            self.wait_for(all_of([server.greet() for server in self.servers]))
        except (EngineError, LookupError, TypeError) as error:
            raise ConfigError(
                f"a server of sampling.servers is of no use: {error}; start it as docs/serving.md "
                "says, or take it out of the list"
            ) from error

    @property
    def context(self) -> int:
        """Tokens of a sequence that every server takes."""
        return min(server.context for server in self.servers)

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``."""
        return self._line.send(work).result()

    def send(self, work: Coroutine[Any, Any, T]) -> Any:
        """Begin ``work`` and come back to it later."""
        return self._line.send(work)

    async def complete(self, sequence: int, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """A choice by the sequence's server, or by another once that one is lost."""
        while True:
            server = self._home(sequence)
            try:
                return await server.complete(body)
            except UnreachableError as error:
                self.lose(server, str(error))

    def lose(self, server: Server, reason: str) -> None:
        """Ask a server nothing more until it has been given weights again."""
        if not server.is_lost:
            _LOG.warning("%s is lost: %s", server.url, reason)
        server.is_lost = True
        self._last_words = reason

    def living(self) -> list[Server]:
        """The servers that are not lost; none is an error."""
        found = [server for server in self.servers if not server.is_lost]
        if not found:
            raise EngineError(
                f"none of {len(self.servers)} servers is left, the last is lost because: "
                f"{self._last_words}. Start them and go on with --resume_from"
            )
        return found

    def forget(self, sequence: int) -> None:
        """A sequence that comes again may go to any server."""
        self._homes.pop(sequence, None)

    def close(self) -> None:
        """Close connections and give up what is under way."""
        self.wait_for(all_of([server.close() for server in self.servers]))
        self._line.close()

    def _home(self, sequence: int) -> Server:
        """The server that read the sequence before, else the one with the least to do."""
        home = self._homes.get(sequence)
        if home is None or home.is_lost:
            home = min(self.living(), key=lambda server: server.load)
            self._homes[sequence] = home
        return home


async def all_of(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of works that go on at the same time."""
    return list(await asyncio.gather(*works))


def _require_vllm(url: str, version: str) -> None:
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        raise EngineError(f"{url} does not say that it is vLLM or grpo-cl serve")
    if (int(found[1]), int(found[2])) < OLDEST_VLLM:
        oldest = ".".join(map(str, OLDEST_VLLM))
        raise EngineError(f"{url} is vLLM {version}, and {oldest} or later is needed")


def _told(url: str, path: str, response: httpx.Response) -> str:
    return f"{url}{path} answers {response.status_code}: {response.text.strip()[:500]}"
