"""The models of a run: one budget, one cache, one pace for all of them."""

import asyncio
import time
from collections.abc import Coroutine
from random import Random
from typing import Any, Self, TypeVar

from grpo_cl.errors import ConfigError, ModelCallError
from grpo_cl.models.budget import Budget
from grpo_cl.models.cache import ReplyCache
from grpo_cl.models.line import Line
from grpo_cl.models.pace import Pace
from grpo_cl.models.prompt import Client, Completion, Failure, Manner, Prompt, Reply
from grpo_cl.roles import ModelRole, ModelsConfig

T = TypeVar("T")


class Models:
    """Opens models by name and answers for all that is asked of them."""

    def __init__(self, config: ModelsConfig) -> None:
        self.config = config
        self.budget = Budget(config)
        self.cache = ReplyCache(config.cache_dir)
        self.pace = Pace(config.concurrency, config.requests_per_minute)
        self._line = Line()
        self._endpoints: list[Endpoint] = []

    def open(self, name: str, manner: Manner, *, base_url: str | None = None) -> "Endpoint":
        """The model called ``name``; one that cannot be used is refused at once."""
        self.budget.require_price(name)
        endpoint = Endpoint(self, name, manner, base_url)
        self._endpoints.append(endpoint)
        return endpoint

    def open_role(self, role: ModelRole, setting: str) -> "Endpoint":
        """The model that ``setting`` names for a role."""
        if role.model is None:
            raise ConfigError(f"nobody is named for {setting}; set {setting}.model=PROVIDER/MODEL")
        manner = Manner(role.temperature, role.max_tokens)
        return self.open(role.model, manner, base_url=role.base_url)

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``, for callers that have no event loop."""
        return self._line.send(work).result()

    async def carry(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``, which goes on while the caller's event loop is held up."""
        return await asyncio.wrap_future(self._line.send(work))

    def close(self) -> None:
        """Close every connection and end what is under way."""
        for endpoint in self._endpoints:
            self.wait_for(endpoint.close())
        self._endpoints.clear()
        self._line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Endpoint:
    """One model, asked until it answers or there is no hope that it will."""

    def __init__(self, models: Models, name: str, manner: Manner, base_url: str | None) -> None:
        self._models = models
        self._name = name
        self._manner = manner
        self._base_url = base_url
        self._client = _open_client(name, base_url)

    @property
    def name(self) -> str:
        """Which model it is, as results name it."""
        return self._name

    async def reply(self, prompt: Prompt, *, seed: int) -> Reply:
        """Its answer, from the cache if it was given before.

        Raises ``ModelCallError`` where none is to be had, ``BudgetError`` where it may not be paid.
        """
        digest = prompt.digest(
            model=self._name, base_url=self._base_url, seed=seed, **self._manner._asdict()
        )
        known = self._models.cache.get(digest)
        if known is not None:
            return Reply(known, digest, is_cached=True)
        return await self._models.carry(self._fetch(prompt, digest, seed))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _fetch(self, prompt: Prompt, digest: str, seed: int) -> Reply:
        models = self._models
        async with models.pace.places:
            started = time.monotonic()
            retries = 0
            while True:
                models.budget.require_rest()
                await models.pace.turn()
                outcome = await self._attempt(prompt, seed)
                if isinstance(outcome, Completion):
                    break
                self._require_hope(outcome, retries)
                await asyncio.sleep(self._pause_s(outcome, retries, digest))
                retries += 1
        cost = models.budget.spend(self._name, outcome)
        models.cache.put(digest, outcome)
        return Reply(outcome, digest, time.monotonic() - started, retries, cost)

    async def _attempt(self, prompt: Prompt, seed: int) -> Completion | Failure:
        timeout_s = self._models.config.timeout_s
        # A task of its own: what it raises is the provider's, of classes nobody can list, and comes
        # back as a value; Inspect's log of the call lives in the task's context and goes with it.
        work = asyncio.create_task(self._client.generate(prompt, self._manner, seed=seed))
        try:
            await asyncio.wait({work}, timeout=timeout_s)
            if not work.done():
                return Failure(f"no answer within {timeout_s:g} s", is_transient=True)
        finally:
            work.cancel()
        error = work.exception()
        return work.result() if error is None else self._client.failure(error)

    def _require_hope(self, failure: Failure, retries: int) -> None:
        if failure.is_refused:
            raise ConfigError(
                f"the endpoint of {self._name!r} refuses us: {failure.reason}; set the provider's "
                "key in its environment variable (docs/users.md)"
            )
        if not failure.is_transient:
            raise ModelCallError(f"{self._name} cannot answer: {failure.reason}")
        if retries >= self._models.config.retries:
            raise ModelCallError(
                f"{self._name} failed {retries + 1} times, at last by: {failure.reason}"
            )

    def _pause_s(self, failure: Failure, retries: int, digest: str) -> float:
        config = self._models.config
        # Drawn apart for each call, so that those refused together do not come back together.
        spread = Random(f"{digest}/{retries}").uniform(0.5, 1.0)
        pause_s = max(config.backoff_s * 2**retries * spread, failure.pause_s)
        return min(pause_s, config.max_backoff_s)


def _open_client(name: str, base_url: str | None) -> Client:
    from grpo_cl.models.wire import InspectClient  # noqa: PLC0415  # takes seconds to import

    return InspectClient(name, base_url)
