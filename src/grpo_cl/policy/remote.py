"""Replies from servers: the same contract as the sampler in process, the model elsewhere."""

import os
import queue
import weakref
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from typing_extensions import override

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import EngineError
from grpo_cl.policy.model import PolicyModel
from grpo_cl.policy.publishing import Publisher
from grpo_cl.policy.ranks import Ranks
from grpo_cl.policy.sampler import Completion, Releasing, Request, require_room
from grpo_cl.policy.servers import Fleet

KEY_VARIABLE = "GRPO_CL_SERVER_KEY"
POLL_S = 0.002
"""How long a poll holds up an event loop at most, where nothing has arrived."""


class _Asked(NamedTuple):
    request: Request
    answer: Future[Mapping[str, Any]]


class RemoteSampler(Releasing):
    """Sends each sequence as a whole; a server's prefix cache makes later turns cheap.

    Requests travel in a thread of their own, so that episodes go on meanwhile. ``publisher``
    brings the servers new weights and proves that they have them.
    """

    def __init__(self, fleet: Fleet, publisher: Publisher, *, context: int) -> None:
        super().__init__()
        self.context = context
        self._fleet = fleet
        self._publisher = publisher
        self._histories: dict[int, list[int]] = {}
        self._waiting: dict[int, _Asked] = {}
        self._arrived: queue.SimpleQueue[tuple[int, Future[Mapping[str, Any]]]] = (
            queue.SimpleQueue()
        )
        self._close = weakref.finalize(self, fleet.close)

    def submit(self, requests: Iterable[Request]) -> None:
        """Take requests; a sequence has one at a time."""
        with self._busy():
            for request in requests:
                self._take(request)

    def poll(self) -> list[Completion]:
        """The replies that have arrived; waits a moment for the first."""
        with self._busy():
            finished: list[Completion] = []
            timeout_s = POLL_S if self._waiting else 0.0
            while (arrived := self._next(timeout_s)) is not None:
                timeout_s = 0.0
                finished += self._finish(*arrived)
            return finished

    def refresh(self, model: PolicyModel) -> None:
        """Let the servers write with the policy's weights of now."""
        self._publisher.publish(model)

    def close(self) -> None:
        """Close the connections."""
        self._close()

    @override
    def _forget(self, sequence: int) -> None:
        self._histories.pop(sequence, None)
        self._fleet.forget(sequence)
        asked = self._waiting.pop(sequence, None)
        if asked is not None:
            asked.answer.cancel()

    def _take(self, request: Request) -> None:
        name = request.sequence
        if name in self._waiting:
            raise ValueError(f"sequence {name} already waits for a reply; poll until it is there")
        ids = [*self._histories.get(name, ()), *request.append]
        require_room(name, len(ids), self.context)
        body = {
            "prompt": ids,
            "max_tokens": min(request.max_new_tokens, self.context - len(ids)),
            "temperature": request.temperature,
            "top_p": request.top_p,
            "seed": request.seed,
            "stop_token_ids": list(request.stop_ids),
            "ignore_eos": True,
            "logprobs": 1,
            "return_token_ids": True,
        }
        arrived = self._arrived
        answer = self._fleet.send(self._fleet.complete(name, body))
        self._histories[name] = ids
        self._waiting[name] = _Asked(request, answer)
        answer.add_done_callback(lambda done: arrived.put((name, done)))

    def _next(self, timeout_s: float) -> tuple[int, Future[Mapping[str, Any]]] | None:
        try:
            return self._arrived.get(timeout=timeout_s) if timeout_s else self._arrived.get_nowait()
        except queue.Empty:
            return None

    def _finish(self, name: int, answer: Future[Mapping[str, Any]]) -> list[Completion]:
        asked = self._waiting.get(name)
        if asked is None or asked.answer is not answer:
            return []  # released meanwhile
        del self._waiting[name]
        completion = _completion(asked.request, answer.result())
        self._histories[name] += completion.ids
        return [completion]


def open_servers(model: PolicyModel, config: GRPOConfig, ranks: Ranks) -> RemoteSampler:
    """A sampler over the servers of a run."""
    fleet = Fleet(config.sampling.servers, key=os.environ.get(KEY_VARIABLE))
    fleet.open()
    publisher = Publisher(fleet, config, ranks)
    return RemoteSampler(fleet, publisher, context=min(model.context, fleet.context))


def _completion(request: Request, choice: Mapping[str, Any]) -> Completion:
    ids = choice.get("token_ids")
    logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
    if not ids or not logprobs or len(ids) != len(logprobs):
        raise EngineError(
            "a server answers without the ids and log-probs of its tokens; it must know "
            "return_token_ids and logprobs, as vLLM and grpo-cl serve do"
        )
    has_stopped = ids[-1] in request.stop_ids
    if choice["finish_reason"] == "stop" and not has_stopped:
        raise EngineError(
            f"a server ended a reply with token {ids[-1]}, which does not end replies here; it "
            "must know stop_token_ids and ignore_eos"
        )
    return Completion(request.id, list(ids), list(logprobs), "stop" if has_stopped else "length")
