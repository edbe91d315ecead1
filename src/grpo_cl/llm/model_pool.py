"""The model pool of a run: one budget, one reply cache and one rate limit for all its models."""

import asyncio
import logging
import os
import tempfile
import time
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Self, TypeVar

from pydantic import ValidationError

from grpo_cl.config import ModelRole, ModelsConfig, hosted_model_name
from grpo_cl.errors import ConfigError, ModelCallError
from grpo_cl.llm.background_loop import BackgroundLoop
from grpo_cl.llm.budget import Budget, with_usage
from grpo_cl.llm.model_use import ModelUse
from grpo_cl.llm.prompt import Client, Completion, Failure, GenerationParams, Prompt, Reply

logger = logging.getLogger(__name__)

T = TypeVar("T")

MINUTE_S = 60.0


class ModelPool:
    """Opens models by name; their calls share budget, cache, concurrency and rate limit."""

    def __init__(self, config: ModelsConfig) -> None:
        self.config = config
        self.budget = Budget(config)
        self.use = ModelUse()
        self.cache = ReplyCache(config.cache_dir)
        self.rate_limiter = RateLimiter(config.concurrency, config.requests_per_minute)
        self._loop = BackgroundLoop()
        self._models: list[HostedModel] = []

    def open(
        self, name: str, params: GenerationParams, *, base_url: str | None = None
    ) -> "HostedModel":
        """The model called ``name``; raises ``ConfigError`` if it cannot be used."""
        name = hosted_model_name(name)
        self.budget.require_price(name)
        model = HostedModel(self, name, params, base_url)
        self._models.append(model)
        return model

    def open_role(self, role: ModelRole, setting: str) -> "HostedModel":
        """The model configured for a role; ``setting`` is the config section of the role."""
        if role.model is None:
            raise ConfigError(f"{setting}.model is not set; set {setting}.model=PROVIDER/MODEL")
        params = GenerationParams(role.temperature, role.max_tokens)
        return self.open(role.model, params, base_url=role.base_url)

    def run_sync(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Block until ``coroutine`` has run on the pool's event loop, and return its result."""
        return self._loop.submit(coroutine).result()

    async def run_async(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run ``coroutine`` on the pool's event loop, which a blocked caller does not hold up."""
        return await asyncio.wrap_future(self._loop.submit(coroutine))

    def close(self) -> None:
        """Cancel running calls and close all connections."""
        self._loop.close(*(model.close for model in self._models))
        self._models.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class HostedModel:
    """One model behind an API, with cached replies and retries."""

    def __init__(
        self, pool: ModelPool, name: str, params: GenerationParams, base_url: str | None
    ) -> None:
        self._pool = pool
        self._name = name
        self._params = params
        self._base_url = base_url
        self._client = _open_client(name, base_url)
        self._reports_usage = True

    @property
    def name(self) -> str:
        """The model's name in results."""
        return self._name

    async def reply(self, prompt: Prompt, *, seed: int) -> Reply:
        """The model's reply, from the cache if the same call was made before.

        Raises ``ModelCallError`` if all attempts fail, ``BudgetError`` if the budget is exhausted.
        """
        use = self._pool.use
        try:
            with use.call():
                reply = await self._reply(prompt, seed)
        except ModelCallError:
            use.count("model_calls")
            use.count("model_calls_failed")
            raise
        use.add(reply)
        return reply

    async def _reply(self, prompt: Prompt, seed: int) -> Reply:
        digest = prompt.digest(
            model=self._name, base_url=self._base_url, seed=seed, **self._params._asdict()
        )
        cached = self._pool.cache.get(digest)
        if cached is not None:
            return Reply(cached, digest, is_cached=True)
        return await self._pool.run_async(self._fetch(prompt, digest, seed))

    def forget(self, digest: str) -> None:
        """Drop a reply from the cache; the next same prompt is sent to the model."""
        self._pool.use.count("model_calls_rejected")
        self._pool.cache.remove(digest)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _fetch(self, prompt: Prompt, digest: str, seed: int) -> Reply:
        pool = self._pool
        async with pool.rate_limiter.slots:
            started = time.monotonic()
            retries = 0
            while True:
                pool.budget.require_remaining()
                await pool.rate_limiter.wait()
                outcome = await self._attempt(prompt, seed)
                if isinstance(outcome, Completion):
                    break
                self._raise_if_final(outcome, retries)
                await asyncio.sleep(self._backoff_s(outcome, retries, digest))
                retries += 1
                pool.use.count("model_retries")
        completion = self._counted(prompt, outcome)
        cost = pool.budget.spend(self._name, completion)
        if completion.text and completion.broken is None:
            pool.cache.put(digest, completion)
        return Reply(completion, digest, time.monotonic() - started, retries, cost)

    def _counted(self, prompt: Prompt, completion: Completion) -> Completion:
        counted = with_usage(prompt, completion)
        if counted != completion and self._reports_usage:
            self._reports_usage = False
            logger.warning("%s reports no usage; its tokens are estimated", self._name)
        return counted

    async def _attempt(self, prompt: Prompt, seed: int) -> Completion | Failure:
        timeout_s = self._pool.config.timeout_s
        # In a task: the provider's exceptions, whose classes are not known here, become values, and
        # Inspect's log of the call, which is kept in the task's context, is freed with the task.
        task = asyncio.create_task(self._client.generate(prompt, self._params, seed=seed))
        try:
            await asyncio.wait({task}, timeout=timeout_s)
            if not task.done():
                return Failure(f"no answer within {timeout_s:g} s", is_transient=True)
        finally:
            task.cancel()
            await asyncio.wait({task})  # a connection that is being opened is closed first
        error = task.exception()
        return task.result() if error is None else self._client.failure(error)

    def _raise_if_final(self, failure: Failure, retries: int) -> None:
        if failure.is_auth_failure:
            raise ConfigError(
                f"the endpoint of {self._name!r} rejects the API key: {failure.reason}; set the "
                "provider's key in its environment variable (docs/users.md)"
            )
        if not failure.is_transient:
            raise ModelCallError(f"{self._place} cannot answer: {failure.reason}")
        if retries >= self._pool.config.retries:
            raise ModelCallError(
                f"{self._place} failed {retries + 1} times; last error: {failure.reason}"
            )

    @property
    def _place(self) -> str:
        """The name in errors, with the endpoint if it was given."""
        return f"{self._name} at {self._base_url}" if self._base_url else self._name

    def _backoff_s(self, failure: Failure, retries: int, digest: str) -> float:
        config = self._pool.config
        # Jitter by call: calls that were refused at the same time are not retried at the same time.
        jitter = Random(f"{digest}/{retries}").uniform(0.5, 1.0)
        backoff_s = max(config.backoff_s * 2**retries * jitter, failure.retry_after_s)
        return min(backoff_s, config.max_backoff_s)


class ReplyCache:
    """Completions on disk by digest; processes may share the folder, None disables the cache."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def get(self, digest: str) -> Completion | None:
        """The cached completion; None if there is none or its file is damaged."""
        if self._folder is None:
            return None
        try:
            return Completion.model_validate_json(self._path(self._folder, digest).read_bytes())
        except (FileNotFoundError, NotADirectoryError, ValidationError):
            return None

    def put(self, digest: str, completion: Completion) -> None:
        """Write a completion atomically: readers see the whole file or none."""
        if self._folder is None:
            return
        path = self._path(self._folder, digest)
        with self._changing(self._folder):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent)
            with os.fdopen(handle, "w") as file:
                file.write(completion.model_dump_json())
            Path(name).replace(path)

    def remove(self, digest: str) -> None:
        """Remove a completion, if there is one."""
        if self._folder is not None:
            with self._changing(self._folder):
                self._path(self._folder, digest).unlink(missing_ok=True)

    @staticmethod
    @contextmanager
    def _changing(folder: Path) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"cannot change a reply in models.cache_dir {str(folder)!r}: {error}; "
                "choose another folder, or null for no cache"
            ) from error

    @staticmethod
    def _path(folder: Path, digest: str) -> Path:
        return folder / digest[:2] / f"{digest}.json"


class RateLimiter:
    """Limits concurrent calls and spaces requests evenly."""

    def __init__(self, concurrency: int, requests_per_minute: float | None) -> None:
        self.slots = asyncio.Semaphore(concurrency)
        """Held by each call until it has its reply."""
        self._interval_s = MINUTE_S / requests_per_minute if requests_per_minute else 0.0
        self._next_s = 0.0

    async def wait(self) -> None:
        """Wait until the next request may start."""
        now_s = asyncio.get_running_loop().time()
        starts_s = max(now_s, self._next_s)
        self._next_s = starts_s + self._interval_s
        await asyncio.sleep(starts_s - now_s)


def _open_client(name: str, base_url: str | None) -> Client:
    from grpo_cl.llm.inspect_client import InspectClient  # noqa: PLC0415  # takes seconds to import

    return InspectClient(name, base_url)
