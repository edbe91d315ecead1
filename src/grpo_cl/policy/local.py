"""A sampler in this process, over the trainer's own weights.

Shapes: B replies being written.
"""

from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple

import torch
from torch import nn
from typing_extensions import override

from grpo_cl.policy.decoding import EagerDecoder, make_decoder
from grpo_cl.policy.draws import Draw, Drawn
from grpo_cl.policy.graphs import Round
from grpo_cl.policy.reader import SlotReader
from grpo_cl.policy.sampler import Completion, Releasing, Request, require_room
from grpo_cl.policy.seats import Conversation, Seats, first_readers
from grpo_cl.policy.trunks import Trunks

PREFILL_TOKENS = 4096
"""Most tokens, padding included, that one pass over new prompts reads on a CPU."""
GPU_PREFILL_TOKENS = 32768
GPU_FREE_TOKENS = 16384
"""Tokens, padding included, that cost a GPU hardly more than the launch of one more pass."""
STEPS_PER_POLL = 16
"""Most tokens per reply between two looks at what else has arrived."""


class _Reply(NamedTuple):
    """A reply being written."""

    request: Request
    start: int
    """Where it begins in the sequence."""
    rng: Random
    logprobs: list[float]

    def draws(self, count: int) -> list[Draw]:
        """How the next tokens are drawn."""
        request = self.request
        return [Draw(self.rng.random(), request.temperature, request.top_p) for _ in range(count)]


class _Flight(NamedTuple):
    """Tokens that are being written, and for whom."""

    round: Round
    holders: list[tuple[Conversation, _Reply]]


class TransformersSampler(Releasing):
    """Continuous batching in process, for any decoder-only Hugging Face model.

    A sequence keeps its row of the cache between its requests. Where there are more sequences than
    rows the newcomers wait, and when nobody who holds a row has anything to do, those who
    rested longest give theirs up and are read again from the start when they come back. The
    weights must not change while a sequence is held; with the last one the cache is freed, unless
    graphs were made over it.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        context: int,
        slots: int,
        device: torch.device | str,
        graphs: bool = False,
    ) -> None:
        super().__init__()
        self.context = context
        place = torch.device(device)
        is_gpu = place.type == "cuda"
        self._piece = GPU_PREFILL_TOKENS if is_gpu else PREFILL_TOKENS
        self._free = GPU_FREE_TOKENS if is_gpu else 0
        self._reader = SlotReader(
            module, context=context, slots=slots, device=place, piece=self._piece
        )
        self._decoder = make_decoder(module, self._reader, graphs=graphs)
        self._trunks = Trunks(self._reader)
        self._seats = Seats(self._reader.cache, slots)
        self._conversations: dict[int, Conversation] = {}
        self._replies: dict[int, _Reply] = {}
        self._flight: _Flight | None = None
        self._steps = 0

    def submit(self, requests: Iterable[Request]) -> None:
        """Take requests; a sequence has one at a time."""
        with self._busy():
            for request in requests:
                self._take(request)

    def poll(self) -> list[Completion]:
        """Read what is new, then write until a reply is finished, at most a few tokens.

        The next tokens are on their way when it returns, so that a GPU and whoever takes the
        replies work at the same time.
        """
        with self._busy(), self._reader.sampling():
            for _ in range(STEPS_PER_POLL // self._decoder.steps):
                self._flight = self._flight or self._begin()
                if self._flight is None:
                    break
                finished = self._land(self._flight)
                if finished:
                    return finished
            return []

    def release_all(self) -> None:
        """Forget every sequence, as when the weights have changed."""
        self._released += self._conversations
        self._sweep()

    @override
    def _forget(self, sequence: int) -> None:
        self._replies.pop(sequence, None)
        conversation = self._conversations.pop(sequence, None)
        if conversation is not None:
            self._seats.leave(conversation)
        if not self._conversations:
            self._flight = None
            self._trunks.clear()
        if not self._conversations and isinstance(self._decoder, EagerDecoder):
            self._reader.clear()

    def _take(self, request: Request) -> None:
        name = request.sequence
        conversation = self._conversations.get(name) or Conversation(name)
        if conversation.is_waiting:
            raise ValueError(f"sequence {name} already waits for a reply; poll until it is there")
        start = len(conversation.ids) + len(request.append)
        require_room(name, start, self.context)
        conversation.ids += request.append
        conversation.is_waiting = True
        self._conversations[name] = conversation
        self._replies[name] = _Reply(request, start, Random(request.seed), [])

    def _prefill(self, running: Sequence[Conversation]) -> None:
        while behind := [one for one in running if one.behind]:
            self._root([one for one in behind if not one.cached])
            self._seats.borrow(behind)
            # The episodes of a group begin alike: the first reads, the others copy its row.
            self._read(first_readers(behind))

    def _root(self, newcomers: Sequence[Conversation]) -> None:
        """Let those go on from a trunk that are long."""
        in_use = {one.place.trunk for one in self._conversations.values()}
        for one in newcomers:
            one.place = self._trunks.place(one.ids, in_use)
            one.cached = one.place.length
            in_use.add(one.place.trunk)

    def _read(self, wave: Sequence[Conversation]) -> None:
        """Read all but the last token of each: few at once, of many those of similar length."""
        if self._decoder.read([one.chunk(one.behind) for one in wave]):
            for one in wave:
                one.cached += one.behind
            return
        while behind := sorted((one for one in wave if one.behind), key=lambda one: -one.behind):
            width = min(behind[0].behind, self._piece)
            alike = [one for one in behind if one.place == behind[0].place]
            if len(alike) * width > self._free:
                alike = [one for one in alike if 2 * one.behind >= width]  # little padding
            batch = alike[: self._piece // width]
            batch.sort(key=lambda one: one.row or 0)
            chunks = [one.chunk(min(width, one.behind)) for one in batch]
            self._reader.read(chunks)
            for one, chunk in zip(batch, chunks, strict=True):
                one.cached += len(chunk.ids)

    def _begin(self) -> _Flight | None:
        """Have more tokens written for all who can have a row."""
        # In the order of the requests, not of the sequences: nobody is overtaken for ever.
        self._seats.admit(self._conversations[sequence] for sequence in self._replies)
        running = self._seats.compact()
        if not running:
            return None
        self._prefill(running)
        holders = [(one, self._replies[one.id]) for one in running]
        draws = [reply.draws(self._decoder.steps) for _, reply in holders]
        return _Flight(self._decoder.begin([one.chunk(1) for one in running], draws), holders)

    def _land(self, flight: _Flight) -> list[Completion]:
        """Take what was written, while more is; the replies that end with it."""
        self._flight = self._follow(flight)
        self._steps += 1
        finished: list[Completion] = []
        for (one, reply), tokens in zip(flight.holders, flight.round.tokens(), strict=True):
            if self._is_written(one, reply):
                one.last_used = self._steps
                finished += self._append(one, reply, tokens)
        if self._flight and not self._written(self._flight):
            self._flight = None  # nobody is left who wants it
        if self._flight is None and not isinstance(self._decoder, EagerDecoder):
            self._flight = self._begin()
        return finished

    def _follow(self, flight: _Flight) -> _Flight | None:
        """More tokens for the same rows, if most still want some and nobody else waits."""
        written = self._written(flight)
        is_alone = len(written) == len(self._replies)
        is_full = 2 * len(written) >= len(flight.holders)
        # Asked before anything is drawn: a number that is lost would change a reply.
        if not is_alone or not is_full or not flight.round.has_room:
            return None
        draws = [reply.draws(self._decoder.steps) for _, reply in flight.holders]
        return _Flight(flight.round.follow(draws), flight.holders)

    def _written(self, flight: _Flight) -> list[_Reply]:
        return [reply for one, reply in flight.holders if self._is_written(one, reply)]

    def _is_written(self, conversation: Conversation, reply: _Reply) -> bool:
        """Whether the reply has neither ended nor been given up."""
        return self._replies.get(conversation.id) is reply

    def _append(
        self, conversation: Conversation, reply: _Reply, tokens: Sequence[Drawn]
    ) -> list[Completion]:
        """Take tokens up to the one that ends the reply, which is returned then."""
        for token in tokens:
            conversation.cached += 1
            conversation.ids.append(token.id)
            reply.logprobs.append(token.logprob)
            finished = self._finish(conversation, reply)
            if finished:
                return finished
        return []

    def _finish(self, conversation: Conversation, reply: _Reply) -> list[Completion]:
        """The reply, if its last token ends it."""
        request, ids = reply.request, conversation.ids
        has_stopped = ids[-1] in request.stop_ids
        is_full = len(reply.logprobs) >= request.max_new_tokens or len(ids) >= self.context
        if not has_stopped and not is_full:
            return []
        conversation.is_waiting = False
        del self._replies[conversation.id]
        reason = "stop" if has_stopped else "length"
        return [Completion(request.id, ids[reply.start :], reply.logprobs, reason)]
