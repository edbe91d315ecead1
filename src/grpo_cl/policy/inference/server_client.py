"""HTTP client of the servers that sample for a run: vLLM or ``grpo-cl serve``.

Requirements on vLLM (docs/serving.md): release 0.20 or later, started with
``VLLM_SERVER_DEV_MODE=1`` (for ``/pause``, ``/resume``, ``/collective_rpc`` and
``/reset_prefix_cache``), with ``--logprobs-mode processed_logprobs`` (log-probs at the sampling
temperature) and ``--generation-config vllm`` (without the model's top-k and repetition penalty)
and, for LoRA, with ``--enable-lora`` and ``VLLM_ALLOW_RUNTIME_LORA_UPDATING=1``.
"""

import asyncio
import json
import logging
import os
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import httpx
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from grpo_cl.errors import ConfigError, EngineError
from grpo_cl.llm.background_loop import BackgroundLoop
from grpo_cl.storage.redaction import hide
from grpo_cl.types import first_problem

T = TypeVar("T")
Answer = TypeVar("Answer", bound=BaseModel)

MIN_VLLM_VERSION = (0, 20)
ADAPTER_NAME = "grpo-cl-policy"
"""The policy's adapter on a server."""
CONNECT_TIMEOUT_S = 5.0
LOAD_TIMEOUT_S = 600.0
"""For the loading of weights, and for running requests to finish before it."""
MAX_LOGPROB = 1e-3
"""Largest log-prob that rounding explains."""
MIN_LOGPROB = -9999.0
"""What vLLM returns for minus infinity; a sampled token has a larger log-prob."""
ANSWER_BYTES, ANSWER_BYTES_PER_TOKEN = 1 << 20, 4096
"""Largest answer to a request, and its further bytes per token of prompt and completion."""

_NO_FINGERPRINT = "it returns no system_fingerprint, by which a restart is noticed"
_RETRIED_STATUS = frozenset({429, 500, 502, 503, 504})
_LOG = logging.getLogger(__name__)


class Patience(NamedTuple):
    """When a server is given up."""

    retry_delays_s: tuple[float, ...] = (0.1, 0.5, 2.0)
    """Delays between the attempts of a request, and between the attempts of a health probe."""
    probe_interval_s: float = 1.0
    """Between two health probes of a server that has requests in flight."""
    probe_timeout_s: float = 2.0
    """For the answer to one health probe."""
    stall_s: float = 60.0
    """Time in which a server with requests in flight must complete one of them …"""
    stall_s_per_token: float = 0.5
    """… and more for each token that a request may have."""


class UnreachableError(EngineError):
    """A server does not respond, or not with what was asked for; another server may be asked."""


class InvalidAnswerError(UnreachableError):
    """A server hangs or its answers cannot be right; it is not asked again."""


class _ServedModel(BaseModel):
    id: str
    max_model_len: PositiveInt


class _ModelList(BaseModel):
    data: Annotated[list[_ServedModel], Field(min_length=1)]


class _Version(BaseModel):
    version: str = ""
    server: str = ""


class _SampledLogprobs(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    token_logprobs: list[Annotated[float, Field(le=MAX_LOGPROB, gt=MIN_LOGPROB)]]


class _PromptLogprob(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    logprob: float


class CompletionChoice(BaseModel):
    """The choice of a ``/v1/completions`` answer."""

    model_config = ConfigDict(strict=True)

    finish_reason: str
    token_ids: Annotated[list[NonNegativeInt], Field(min_length=1)]
    logprobs: _SampledLogprobs
    prompt_logprobs: list[dict[str, _PromptLogprob] | None] | None = None

    def check(self, *, max_tokens: int, vocabulary: int) -> None:
        """Raise if a server cannot have sampled these tokens for a request."""
        ids, logprobs = self.token_ids, self.logprobs.token_logprobs
        if len(ids) > max_tokens:
            raise InvalidAnswerError(
                f"it returns {len(ids)} tokens and max_tokens was {max_tokens}"
            )
        if len(ids) != len(logprobs):
            raise InvalidAnswerError(f"it returns {len(ids)} tokens with {len(logprobs)} log-probs")
        if max(ids) >= vocabulary:
            raise InvalidAnswerError(
                f"it returns token {max(ids)} and the vocabulary has {vocabulary} tokens"
            )


class _CompletionAnswer(BaseModel):
    choices: Annotated[list[CompletionChoice], Field(min_length=1, max_length=1)]
    system_fingerprint: str | None = None


class Server:
    """One server: its connection, model names and state."""

    def __init__(self, url: str, key: str | None, patience: Patience) -> None:
        self._address = url.rstrip("/").removesuffix("/v1")
        self.url = hide(self._address, variables=os.environ)
        """The address without credentials, for messages."""
        self.base_model = ""
        """Served name of the base weights."""
        self.model = ""
        """Served name of the policy's weights."""
        self.context = 0
        self.load = 0
        """Requests in flight."""
        self.is_dead = False
        self.fingerprint: str | None = None
        """Weight version that ``grpo-cl serve`` reported with the verified weights, else None."""
        self._is_grpo_cl = False
        self._patience = patience
        self._probing: asyncio.Task[str] | None = None
        self._num_supervised = 0
        self._num_answers = 0
        self._client = httpx.AsyncClient(
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=256),
            trust_env=False,  # the machine's proxy settings are for other addresses
        )

    async def handshake(self) -> None:
        """Read the server's version, model name and context; raise if it is unsupported."""
        try:
            await self._read_properties()
        except EngineError as error:
            raise EngineError(f"{self.url}: {error}") from error

    async def complete(self, body: Mapping[str, Any]) -> CompletionChoice:
        """The one choice of ``/v1/completions``; transient failures are retried."""
        self.load += 1
        try:
            for delay_s in self._patience.retry_delays_s:
                try:
                    return await self._choice(body)
                except InvalidAnswerError:
                    raise
                except UnreachableError:
                    if self.is_dead:
                        raise
                    await asyncio.sleep(delay_s)
            return await self._choice(body)
        finally:
            self.load -= 1

    async def require_health(self) -> None:
        """Raise unless the server answers a health probe."""
        failure = await self._health_failure()
        if failure:
            raise UnreachableError(failure)

    async def load_weights(self, folder: Path, *, is_adapter: bool) -> None:
        """Make the server load the weights of ``folder`` and reset its prefix cache."""
        self.fingerprint = None
        if is_adapter:
            body = {"lora_name": ADAPTER_NAME, "lora_path": str(folder), "load_inplace": True}
            await self._send("POST", "/v1/load_lora_adapter", body)
            await self._send("POST", "/reset_prefix_cache")
            self.model = ADAPTER_NAME
            return
        await self._send("POST", "/pause?mode=wait")
        try:
            body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
            await self._send("POST", "/collective_rpc", body)
            await self._send("POST", "/reset_prefix_cache")
        finally:
            await self._send("POST", "/resume")

    async def probe(self, body: Mapping[str, Any]) -> CompletionChoice:
        """A completion by which the loaded weights are verified; stores their fingerprint."""
        answer = await self._completion(body)
        if self._is_grpo_cl:
            self.fingerprint = answer.system_fingerprint
            if not self.fingerprint:
                raise InvalidAnswerError(_NO_FINGERPRINT)
        return answer.choices[0]

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _read_properties(self) -> None:
        version = await self._answer(_Version, "GET", "/version")
        self._is_grpo_cl = version.server == "grpo-cl"
        if not self._is_grpo_cl:
            _require_vllm(version.version)
        served = (await self._answer(_ModelList, "GET", "/v1/models")).data[0]
        self.base_model = self.model = served.id
        self.context = served.max_model_len

    async def _choice(self, body: Mapping[str, Any]) -> CompletionChoice:
        answer = await self._completion(body)
        if self.is_dead:
            raise UnreachableError("it was given up before this answer arrived")
        if self.fingerprint and not answer.system_fingerprint:
            raise InvalidAnswerError(_NO_FINGERPRINT)
        if self.fingerprint and answer.system_fingerprint != self.fingerprint:
            raise InvalidAnswerError("it was restarted and has other weights")
        choice = answer.choices[0]
        if choice.finish_reason == "abort":
            raise UnreachableError("it aborted a request")
        return choice

    async def _completion(self, body: Mapping[str, Any]) -> _CompletionAnswer:
        patience = self._patience
        limit_s = patience.stall_s + patience.stall_s_per_token * body["max_tokens"]
        named = {**body, "model": self.model}
        return await self._answer(
            _CompletionAnswer, "POST", "/v1/completions", named, limit_s=limit_s
        )

    async def _answer(
        self,
        kind: type[Answer],
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        limit_s: float = LOAD_TIMEOUT_S,
    ) -> Answer:
        content = await self._send(method, path, body, limit_s=limit_s)
        try:
            fields = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise UnreachableError(f"{path} does not return JSON") from error
        try:
            return kind.model_validate(fields)
        except ValidationError as error:
            raise InvalidAnswerError(
                f"{path} returns an invalid answer: {first_problem(error)}"
            ) from error

    async def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        limit_s: float = LOAD_TIMEOUT_S,
    ) -> bytes:
        try:
            return await self._supervised(self._transfer(method, path, body), path, limit_s)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = hide(f"{type(error).__name__} {error}".strip(), variables=os.environ)
            raise UnreachableError(f"it does not respond: {reason}") from error

    async def _transfer(self, method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
        """The content of the answer to one request; an answer that is too long is not read."""
        most = ANSWER_BYTES + ANSWER_BYTES_PER_TOKEN * _num_tokens(body or {})
        content = bytearray()
        async with self._client.stream(method, f"{self._address}{path}", json=body) as response:
            async for part in response.aiter_bytes():
                content += part
                if len(content) > most:
                    raise InvalidAnswerError(f"{path} returns more than {most} bytes")
        if response.is_error:
            text = content.decode("utf-8", "replace").strip()[:500]
            message = f"{path} answers {response.status_code}: {text}"
            is_retried = response.status_code in _RETRIED_STATUS
            raise UnreachableError(message) if is_retried else EngineError(message)
        return bytes(content)

    async def _supervised(self, work: Coroutine[Any, Any, T], path: str, limit_s: float) -> T:
        """The result of ``work``; raises if the server hangs.

        It hangs if it fails its health probes, or answers neither this request nor another one
        for ``limit_s``.
        """
        working = asyncio.ensure_future(work)
        try:
            async with self._health_probes() as probing:
                while not working.done():
                    num_answers = self._num_answers
                    await asyncio.wait(
                        {working, probing}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
                    )
                    if probing.done():
                        raise InvalidAnswerError(f"it hangs: {probing.result()}")
                    if not working.done() and num_answers == self._num_answers:
                        raise InvalidAnswerError(
                            f"it hangs: {path} gives no answer for {limit_s:g} s"
                        )
            self._num_answers += 1
            return working.result()
        finally:
            working.cancel()

    @asynccontextmanager
    async def _health_probes(self) -> AsyncGenerator[asyncio.Task[str]]:
        """One task probes the server while it has requests in flight; it ends if they fail."""
        if self._probing is None:
            self._probing = asyncio.create_task(self._probe_health())
        self._num_supervised += 1
        try:
            yield self._probing
        finally:
            self._num_supervised -= 1
            if not self._num_supervised:
                self._probing.cancel()
                self._probing = None

    async def _probe_health(self) -> str:
        """Probe until all attempts in a row have failed; returns the last failure."""
        failure = ""
        while True:
            await asyncio.sleep(self._patience.probe_interval_s)
            for delay_s in (0.0, *self._patience.retry_delays_s):
                await asyncio.sleep(delay_s)
                failure = await self._health_failure()
                if not failure:
                    break
            else:
                return failure

    async def _health_failure(self) -> str:
        limit_s = self._patience.probe_timeout_s
        try:
            # A time limit of httpx is per read: a server that sends byte after byte would pass it.
            async with (
                asyncio.timeout(limit_s),
                self._client.stream("GET", f"{self._address}/health") as answer,
            ):
                is_error = answer.is_server_error  # the body, which may not end, is not read
        except TimeoutError:
            return f"GET /health gives no answer for {limit_s:g} s"
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return f"GET /health fails with {type(error).__name__}"
        return f"GET /health answers {answer.status_code}" if is_error else ""


class ServerPool:
    """Servers with the same weights; requests of a dead server move to the others."""

    def __init__(
        self, urls: Sequence[str], *, key: str | None = None, patience: Patience | None = None
    ) -> None:
        self.servers = [Server(url, key, patience or Patience()) for url in urls]
        self._loop = BackgroundLoop()
        self._assigned: dict[int, Server] = {}
        self._last_failure = ""

    def open(self) -> None:
        """Connect to all servers; each must be reachable at the start of a run."""
        try:
            self.wait_for(gather([server.handshake() for server in self.servers]))
        except EngineError as error:
            raise ConfigError(
                f"a server of sampling.servers cannot be used: {error}; start it as "
                "docs/serving.md describes, or remove it from the list"
            ) from error

    @property
    def context(self) -> int:
        """Longest sequence that every server accepts."""
        return min(server.context for server in self.servers)

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run ``coroutine`` in the background loop and return its result."""
        return self._loop.submit(coroutine).result()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Any:
        """Start ``coroutine`` in the background loop and return its future."""
        return self._loop.submit(coroutine)

    async def complete(
        self, sequence: int, body: Mapping[str, Any], read: Callable[[CompletionChoice], T]
    ) -> T:
        """A completion from the sequence's server, or from another if that one is dead.

        ``read`` raises an ``InvalidAnswerError`` for a completion that cannot be right.
        """
        while True:
            server = self._server_for(sequence)
            try:
                return read(await server.complete(body))
            except EngineError as error:
                self.mark_dead(server, str(error))

    def mark_dead(self, server: Server, reason: str) -> None:
        """Send a server no requests until it has loaded weights again."""
        if not server.is_dead:
            _LOG.warning("%s is dead: %s", server.url, reason)
        server.is_dead = True
        self._last_failure = f"{server.url}: {reason}"

    def alive(self) -> list[Server]:
        """The servers that are not dead; raises if there are none."""
        servers = [server for server in self.servers if not server.is_dead]
        if not servers:
            raise EngineError(
                f"all {len(self.servers)} servers are dead; the last failure was: "
                f"{self._last_failure}. Start them and continue with --resume_from"
            )
        return servers

    def unassign(self, sequence: int) -> None:
        """Let the next request of a sequence go to any server."""
        self._assigned.pop(sequence, None)

    def close(self) -> None:
        """Cancel requests in flight and close the connections."""
        self._loop.close(*(server.close for server in self.servers))

    def _server_for(self, sequence: int) -> Server:
        """The server that has the sequence in its prefix cache, else the least loaded one."""
        server = self._assigned.get(sequence)
        if server is None or server.is_dead:
            server = min(self.alive(), key=lambda server: server.load)
            self._assigned[sequence] = server
        return server


async def gather(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of coroutines that run concurrently."""
    return list(await asyncio.gather(*coroutines))


def _require_vllm(version: str) -> None:
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        raise EngineError("it is neither vLLM nor grpo-cl serve: /version has no version")
    if (int(match[1]), int(match[2])) < MIN_VLLM_VERSION:
        oldest = ".".join(map(str, MIN_VLLM_VERSION))
        raise EngineError(f"it is vLLM {version}; {oldest} or later is needed")


def _num_tokens(body: Mapping[str, Any]) -> int:
    return len(body.get("prompt", ())) + int(body.get("max_tokens", 0))
