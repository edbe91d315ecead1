"""The worker thread of the server: batched generation, with weight updates in between."""

import itertools
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from typing_extensions import override

from grpo_cl.errors import ContextFullError
from grpo_cl.llm.background_loop import BackgroundLoop
from grpo_cl.policy.inference.adapter_pool import AdapterPool
from grpo_cl.policy.inference.policy_agent import RequestQueue
from grpo_cl.policy.inference.sampler import (
    GenerationRequest,
    TokenCompletion,
    TokenConstraint,
)
from grpo_cl.policy.inference.transformers_sampler import TransformersSampler
from grpo_cl.serving.pause_gate import PauseGate
from grpo_cl.serving.requests import RequestError
from grpo_cl.serving.weights import ServedWeights

T = TypeVar("T")


class GenerationPrompt(NamedTuple):
    """Token ids to complete, and how to sample the completion."""

    model: str
    """The name of the policy or of one of its adapters."""
    ids: Sequence[int]
    max_new_tokens: int
    temperature: float
    top_p: float
    stop_ids: tuple[int, ...]
    seed: int
    constraint: TokenConstraint | None = None


class _AdapterSampler(TransformersSampler):
    """A sampler for one of the models that share a module."""

    def __init__(self, pool: AdapterPool, name: str, slots: int) -> None:
        model = pool.model
        super().__init__(model.module, context=model.context, slots=slots, device=model.device)
        self._pool = pool
        self._name = name

    @override
    def poll(self) -> list[TokenCompletion]:
        with self._pool.active(self._name):
            return super().poll()


class SequenceCache:
    """The sequences of one model; finished ones stay cached, since chats often continue."""

    def __init__(self, pool: AdapterPool, name: str, slots: int) -> None:
        self._sampler = _AdapterSampler(pool, name, slots)
        self._queue = RequestQueue(self._sampler)
        self._slots = slots
        self._num_running = 0
        self._idle: dict[int, list[int]] = {}
        """Token ids of the finished sequences, least recently used first."""
        self._numbers = itertools.count()

    async def generate(self, prompt: GenerationPrompt) -> TokenCompletion:
        """The completion of a prompt."""
        sequence, num_cached = self._find_sequence(prompt.ids)
        request = GenerationRequest(
            id=sequence,
            sequence=sequence,
            append=prompt.ids[num_cached:],
            max_new_tokens=prompt.max_new_tokens,
            temperature=prompt.temperature,
            top_p=prompt.top_p,
            stop_ids=prompt.stop_ids,
            seed=prompt.seed,
            constraint=prompt.constraint,
        )
        self._num_running += 1
        is_finished = False
        try:
            completion = await self._queue.generate(request)
            is_finished = True
        finally:
            self._num_running -= 1
            if not is_finished:
                self._sampler.release(sequence)
        self._idle[sequence] = [*prompt.ids, *completion.ids]
        self._evict(0)
        return completion

    def clear(self) -> None:
        """Drop all finished sequences."""
        for sequence in list(self._idle):
            self._drop(sequence)

    def _find_sequence(self, ids: Sequence[int]) -> tuple[int, int]:
        """The longest idle sequence that is a prefix of ``ids``, and its length; else a new one."""
        matches = [
            (len(cached), sequence)
            for sequence, cached in self._idle.items()
            if len(cached) < len(ids) and list(ids[: len(cached)]) == cached
        ]
        if matches:
            length, sequence = max(matches)
            del self._idle[sequence]
            return sequence, length
        self._evict(1)
        return next(self._numbers), 0

    def _evict(self, count: int) -> None:
        # The sampler evicts no idle sequence while another is running, so new ones would wait.
        while self._idle and len(self._idle) + self._num_running + count > self._slots:
            self._drop(next(iter(self._idle)))

    def _drop(self, sequence: int) -> None:
        del self._idle[sequence]
        self._sampler.release(sequence)


class GenerationWorker:
    """Generates in a background thread, so that the server responds while the model is busy."""

    def __init__(self, weights: ServedWeights, *, slots: int) -> None:
        self.weights = weights
        self._slots = slots
        self._loop = BackgroundLoop()
        self._caches: dict[str, SequenceCache] = {}
        self.gate = self._loop.submit(_construct(PauseGate)).result()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start ``coroutine`` in the worker thread."""
        return self._loop.submit(coroutine)

    async def generate(self, prompt: GenerationPrompt) -> TokenCompletion:
        """The completion of a prompt; runs in the worker thread."""
        async with self.gate.request():
            self.weights.require(prompt.model)
            if prompt.model not in self._caches:
                pool = self.weights.pool
                self._caches[prompt.model] = SequenceCache(pool, prompt.model, self._slots)
            try:
                return await self._caches[prompt.model].generate(prompt)
            except ContextFullError as error:
                raise RequestError(str(error), code="context_length_exceeded") from error

    async def score(self, model: str, ids: Sequence[int]) -> list[float]:
        """Log-probs of all ids but the first at temperature 1; runs in the worker thread."""
        async with self.gate.request():
            self.weights.require(model)
            with self.weights.pool.active(model):
                return self.weights.pool.model.token_logprobs(ids)

    async def update(self, change: Callable[[], None]) -> None:
        """Change the weights once all running requests have finished; in the worker thread."""
        async with self.gate.exclusive():
            change()
            self._caches.clear()

    async def reset_cache(self) -> None:
        """Drop all cached sequences; runs in the worker thread."""
        for cache in self._caches.values():
            cache.clear()

    def close(self) -> None:
        """Stop the thread and cancel its requests."""
        self._loop.close()


async def _construct(kind: Callable[[], T]) -> T:
    """An instance constructed inside the event loop it belongs to."""
    return kind()
