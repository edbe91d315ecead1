"""Sampling from HTTP servers: the same protocol as the in-process sampler."""

import os
import queue
import weakref
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from typing_extensions import override

from grpo_cl.config import GRPOConfig
from grpo_cl.policy.inference.sampler import (
    DeferredRelease,
    GenerationRequest,
    TokenCompletion,
    check_prompt_length,
)
from grpo_cl.policy.inference.server_client import (
    CompletionChoice,
    InvalidAnswerError,
    ServerPool,
)
from grpo_cl.policy.inference.weight_sync import WeightPublisher
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.model.policy_model import PolicyModel

KEY_VARIABLE = "GRPO_CL_SERVER_KEY"
POLL_S = 0.002
"""Longest time a poll blocks the event loop while no response has arrived."""


class _PendingRequest(NamedTuple):
    request: GenerationRequest
    response: Future[TokenCompletion]


class ServerSampler(DeferredRelease):
    """Sends the whole sequence with each request; the server's prefix cache avoids recomputation.

    HTTP requests run in a background thread, so that episodes continue meanwhile. ``publisher``
    sends new weights to the servers and verifies them.
    """

    def __init__(
        self, pool: ServerPool, publisher: WeightPublisher, *, context: int, vocabulary: int
    ) -> None:
        super().__init__()
        self.context = context
        self._vocabulary = vocabulary
        self._pool = pool
        self._publisher = publisher
        self._sequences: dict[int, list[int]] = {}
        self._pending: dict[int, _PendingRequest] = {}
        self._arrived: queue.SimpleQueue[tuple[int, Future[TokenCompletion]]] = queue.SimpleQueue()
        self._close = weakref.finalize(self, pool.close)

    def submit(self, requests: Iterable[GenerationRequest]) -> None:
        """Queue requests; a sequence has at most one unfinished request."""
        with self._busy():
            for request in requests:
                self._send(request)

    def poll(self) -> list[TokenCompletion]:
        """The completions that have arrived; blocks at most ``POLL_S`` for the first."""
        with self._busy():
            finished: list[TokenCompletion] = []
            timeout_s = POLL_S if self._pending else 0.0
            while (arrived := self._next(timeout_s)) is not None:
                timeout_s = 0.0
                finished += self._finish(*arrived)
            return finished

    def sync_weights(self, model: PolicyModel) -> None:
        """Publish the policy's current weights to all servers and verify them."""
        self._publisher.publish(model)

    def close(self) -> None:
        """Close the connections."""
        self._close()

    @override
    def _drop(self, sequence: int) -> None:
        self._sequences.pop(sequence, None)
        self._pool.unassign(sequence)
        pending = self._pending.pop(sequence, None)
        if pending is not None:
            pending.response.cancel()

    def _send(self, request: GenerationRequest) -> None:
        name = request.sequence
        if name in self._pending:
            raise ValueError(f"sequence {name} already waits for a reply; poll until it is there")
        ids = [*self._sequences.get(name, ()), *request.append]
        check_prompt_length(name, len(ids), self.context)
        max_tokens = min(request.max_new_tokens, self.context - len(ids))
        body = {
            "prompt": ids,
            "max_tokens": max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "seed": request.seed,
            "stop_token_ids": list(request.stop_ids),
            "ignore_eos": True,
            "logprobs": 1,
            "return_token_ids": True,
        }
        arrived = self._arrived
        read = partial(_completion, request, max_tokens, self._vocabulary)
        response = self._pool.submit(self._pool.complete(name, body, read))
        self._sequences[name] = ids
        self._pending[name] = _PendingRequest(request, response)
        response.add_done_callback(lambda done: arrived.put((name, done)))

    def _next(self, timeout_s: float) -> tuple[int, Future[TokenCompletion]] | None:
        try:
            return self._arrived.get(timeout=timeout_s) if timeout_s else self._arrived.get_nowait()
        except queue.Empty:
            return None

    def _finish(self, name: int, response: Future[TokenCompletion]) -> list[TokenCompletion]:
        pending = self._pending.get(name)
        if pending is None or pending.response is not response:
            return []  # released meanwhile
        del self._pending[name]
        completion = response.result()
        self._sequences[name] += completion.ids
        return [completion]


def connect_servers(
    model: PolicyModel, config: GRPOConfig, ranks: DistributedContext
) -> ServerSampler:
    """A sampler over ``sampling.servers``."""
    pool = ServerPool(config.sampling.servers, key=os.environ.get(KEY_VARIABLE))
    pool.open()
    publisher = WeightPublisher(pool, config, ranks)
    context = min(model.context, pool.context)
    return ServerSampler(pool, publisher, context=context, vocabulary=model.vocabulary)


def _completion(
    request: GenerationRequest, max_tokens: int, vocabulary: int, choice: CompletionChoice
) -> TokenCompletion:
    choice.check(max_tokens=max_tokens, vocabulary=vocabulary)
    ids, logprobs = choice.token_ids, choice.logprobs.token_logprobs
    has_stopped = ids[-1] in request.stop_ids
    if choice.finish_reason == "stop" and not has_stopped:
        raise InvalidAnswerError(
            f"it ended a reply with token {ids[-1]}, which is no stop token of this policy; "
            "a server must support stop_token_ids and ignore_eos"
        )
    if not set(request.stop_ids).isdisjoint(ids[:-1]):
        raise InvalidAnswerError(
            "it goes on after a stop token; a server must support stop_token_ids"
        )
    return TokenCompletion(request.id, ids, logprobs, "stop" if has_stopped else "length")
