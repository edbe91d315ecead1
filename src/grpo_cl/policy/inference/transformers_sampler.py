"""In-process sampling with continuous batching, on the trainer's own weights.

Shapes: B sequences being decoded.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

import torch
from torch import nn
from typing_extensions import override

from grpo_cl.gpu_memory.constants import GPU_PREFILL_TOKENS
from grpo_cl.policy.inference.cuda_graphs import DecodeResult
from grpo_cl.policy.inference.decoders import EagerDecoder, make_decoder
from grpo_cl.policy.inference.model_runner import ModelRunner
from grpo_cl.policy.inference.prefix_cache import PrefixCache
from grpo_cl.policy.inference.sampler import (
    DeferredRelease,
    GenerationRequest,
    TokenCompletion,
    check_prompt_length,
)
from grpo_cl.policy.inference.slot_scheduler import (
    SequenceState,
    SlotScheduler,
    prefill_leaders,
    slot_prefixes,
)
from grpo_cl.policy.inference.token_sampling import SampledToken, SampleParams

PREFILL_TOKENS = 4096
"""Most tokens, padding included, of one prefill pass on a CPU."""
GPU_UNSORTED_TOKENS = 16384
"""Prefill tokens, padding included, that cost a GPU hardly more than the launch of another pass;
up to this size a batch mixes prompts of all lengths."""
STEPS_PER_POLL = 16
"""Most tokens per sequence that one poll decodes."""


class _Reply(NamedTuple):
    """An unfinished completion."""

    request: GenerationRequest
    start: int
    """Its first position in the sequence."""
    rng: Random
    logprobs: list[float]

    def sample_params(self, count: int) -> list[SampleParams]:
        """Parameters of the next ``count`` tokens."""
        request = self.request
        return [
            SampleParams(self.rng.random(), request.temperature, request.top_p)
            for _ in range(count)
        ]


class _InFlightStep(NamedTuple):
    """A launched decode step and the sequences of its rows."""

    result: DecodeResult
    rows: list[tuple[SequenceState, _Reply]]


class TransformersSampler(DeferredRelease):
    """Continuous batching in process, for any decoder-only Hugging Face model.

    A sequence keeps its KV cache slot between requests. With more sequences than slots, new ones
    wait; when no sequence in a slot has an unfinished request, the least recently used ones are
    evicted and prefilled from the start when they return. The weights must not change while a
    sequence is held. Releasing the last sequence frees the cache, unless CUDA graphs use it.
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
        device = torch.device(device)
        is_gpu = device.type == "cuda"
        self._max_prefill_tokens = GPU_PREFILL_TOKENS if is_gpu else PREFILL_TOKENS
        self._unsorted_tokens = GPU_UNSORTED_TOKENS if is_gpu else 0
        # On a CPU a token costs more than the copy of its keys and values, on a GPU the launches
        # of a copy cost more than a short tool result.
        self._copies_results = not is_gpu
        self._runner = ModelRunner(
            module,
            context=context,
            slots=slots,
            device=device,
            max_prefill_tokens=self._max_prefill_tokens,
        )
        self._decoder = make_decoder(module, self._runner, graphs=graphs)
        self._prefix_cache = PrefixCache(self._runner)
        self._scheduler = SlotScheduler(self._runner.cache, slots)
        self._sequences: dict[int, SequenceState] = {}
        self._replies: dict[int, _Reply] = {}
        self._in_flight: _InFlightStep | None = None
        self._num_steps = 0

    def submit(self, requests: Iterable[GenerationRequest]) -> None:
        """Queue requests; a sequence has at most one unfinished request."""
        with self._busy():
            for request in requests:
                self._enqueue(request)

    def poll(self) -> list[TokenCompletion]:
        """Prefill new prompts, then decode until a completion finishes or a few tokens are done.

        The next step is launched before it returns, so that the GPU works while the caller handles
        the completions.
        """
        with self._busy(), self._runner.inference_mode():
            for _ in range(STEPS_PER_POLL // self._decoder.steps):
                self._in_flight = self._in_flight or self._launch()
                if self._in_flight is None:
                    break
                finished = self._collect(self._in_flight)
                if finished:
                    return finished
            return []

    def release_all(self) -> None:
        """Drop every sequence, as after a change of the weights."""
        self._pending_releases += self._sequences
        self._release_pending()

    @override
    def _drop(self, sequence: int) -> None:
        self._replies.pop(sequence, None)
        state = self._sequences.pop(sequence, None)
        if state is not None:
            self._scheduler.free(state)
        if not self._sequences:
            self._in_flight = None
            self._prefix_cache.clear()
            self._decoder.weights_may_change()
        if not self._sequences and isinstance(self._decoder, EagerDecoder):
            self._runner.clear()

    def _enqueue(self, request: GenerationRequest) -> None:
        name = request.sequence
        state = self._sequences.get(name) or SequenceState(name)
        if state.is_waiting:
            raise ValueError(f"sequence {name} already waits for a reply; poll until it is there")
        start = len(state.ids) + len(request.append)
        check_prompt_length(name, start, self.context)
        state.ids += request.append
        state.is_waiting = True
        state.num_prefilled = 0
        self._sequences[name] = state
        self._replies[name] = _Reply(request, start, Random(request.seed), [])

    def _prefill(self, running: Sequence[SequenceState]) -> None:
        while unread := [state for state in running if state.num_to_prefill]:
            self._assign_prefixes([state for state in unread if not state.num_cached])
            # The episodes of a group share their prompt, and until they differ also replies and
            # tool results: the leader is prefilled, the others copy.
            copying = [state for state in unread if self._copies_results or not state.num_in_slot]
            self._scheduler.copy_shared_prefixes(copying)
            others = [state for state in unread if state not in copying]
            self._prefill_batches([*prefill_leaders(copying), *others])

    def _assign_prefixes(self, new: Sequence[SequenceState]) -> None:
        """Let new sequences with a long prompt start from a cached prefix."""
        in_use = {state.prefix.slot for state in self._sequences.values()}
        for state in new:
            num_before = self._prefix_cache.num_prefilled
            state.prefix = self._prefix_cache.find_or_prefill(state.ids, in_use)
            state.num_prefilled += self._prefix_cache.num_prefilled - num_before
            state.num_cached = state.prefix.length
            in_use.add(state.prefix.slot)

    def _prefill_batches(self, leaders: Sequence[SequenceState]) -> None:
        """Prefill all tokens but the last; large batches hold prompts of similar length only."""
        if self._decoder.prefill([state.next_chunk(state.num_to_prefill) for state in leaders]):
            for state in leaders:
                state.num_prefilled += state.num_to_prefill
                state.num_cached += state.num_to_prefill
            return
        while unread := sorted(
            (state for state in leaders if state.num_to_prefill),
            key=lambda state: -state.num_to_prefill,
        ):
            width = min(unread[0].num_to_prefill, self._max_prefill_tokens)
            batch = [state for state in unread if state.prefix == unread[0].prefix]
            if len(batch) * width > self._unsorted_tokens:
                batch = [state for state in batch if 2 * state.num_to_prefill >= width]
            batch = batch[: self._max_prefill_tokens // width]
            batch.sort(key=lambda state: state.slot or 0)
            chunks = [state.next_chunk(min(width, state.num_to_prefill)) for state in batch]
            self._runner.append(chunks)
            for state, chunk in zip(batch, chunks, strict=True):
                state.num_prefilled += len(chunk.ids)
                state.num_cached += len(chunk.ids)

    def _launch(self) -> _InFlightStep | None:
        """Prefill and launch a decode step for all waiting sequences that can have a slot."""
        # In the order of the requests, not of the sequences, so that no request starves.
        self._scheduler.admit(self._sequences[sequence] for sequence in self._replies)
        if not self._decoder.reads_any_slot:
            self._scheduler.compact()
        running = self._scheduler.running()
        if not running:
            return None
        self._prefill(running)
        rows = [(state, self._replies[state.id]) for state in running]
        params = [reply.sample_params(self._decoder.steps) for _, reply in rows]
        chunks = [state.next_chunk(1) for state in running]
        if self._decoder.reads_any_slot:
            pairs = zip(chunks, slot_prefixes(running), strict=True)
            chunks = [chunk._replace(shared=shared) for chunk, shared in pairs]
        constraints = {
            row: partial(reply.request.constraint, state.ids[reply.start :])
            for row, (state, reply) in enumerate(rows)
            if reply.request.constraint is not None
        }
        if not constraints:
            return _InFlightStep(self._decoder.decode(chunks, params), rows)
        assert isinstance(self._decoder, EagerDecoder), "graphs sample without the host"
        return _InFlightStep(self._decoder.decode_constrained(chunks, params, constraints), rows)

    def _collect(self, step: _InFlightStep) -> list[TokenCompletion]:
        """Append the tokens of a step while the next one runs; returns finished completions."""
        self._in_flight = self._launch_next(step)
        self._num_steps += 1
        finished: list[TokenCompletion] = []
        for (state, reply), tokens in zip(step.rows, step.result.tokens(), strict=True):
            if self._is_unfinished(state, reply):
                state.last_used = self._num_steps
                finished += self._append(state, reply, tokens)
        if self._in_flight and not self._num_unfinished(self._in_flight):
            self._in_flight = None
        if self._in_flight is None and not isinstance(self._decoder, EagerDecoder):
            self._in_flight = self._launch()
        return finished

    def _launch_next(self, step: _InFlightStep) -> _InFlightStep | None:
        """Launch the next step of the same rows if most are unfinished and no request waits."""
        num_unfinished = self._num_unfinished(step)
        is_alone = num_unfinished == len(self._replies)
        is_full = 2 * num_unfinished >= len(step.rows)
        # Decided before random numbers are drawn: a discarded one would change the completion.
        if not is_alone or not is_full or not step.result.has_room or self._fills_all(step):
            return None
        params = [reply.sample_params(self._decoder.steps) for _, reply in step.rows]
        return _InFlightStep(step.result.decode_more(params), step.rows)

    def _num_unfinished(self, step: _InFlightStep) -> int:
        return sum(self._is_unfinished(state, reply) for state, reply in step.rows)

    def _fills_all(self, step: _InFlightStep) -> bool:
        """Whether the step reaches the limits of all unfinished replies: none needs another."""
        steps = self._decoder.steps
        return all(
            len(reply.logprobs) + steps >= reply.request.max_new_tokens
            for state, reply in step.rows
            if self._is_unfinished(state, reply)
        )

    def _is_unfinished(self, state: SequenceState, reply: _Reply) -> bool:
        """Whether the reply has neither finished nor been released."""
        return self._replies.get(state.id) is reply

    def _append(
        self, state: SequenceState, reply: _Reply, tokens: Sequence[SampledToken]
    ) -> list[TokenCompletion]:
        """Append tokens up to the one that finishes the reply, which is returned then."""
        for token in tokens:
            state.num_cached += 1
            state.ids.append(token.id)
            reply.logprobs.append(token.logprob)
            finished = self._finish(state, reply)
            if finished:
                return finished
        return []

    def _finish(self, state: SequenceState, reply: _Reply) -> list[TokenCompletion]:
        """The completion, if its last token finishes it."""
        request, ids = reply.request, state.ids
        has_stopped = ids[-1] in request.stop_ids
        is_full = len(reply.logprobs) >= request.max_new_tokens or len(ids) >= self.context
        if not has_stopped and not is_full:
            return []
        state.is_waiting = False
        del self._replies[state.id]
        reason = "stop" if has_stopped else "length"
        # The last token before the reply is always read anew, by the first decode step.
        num_cached = max(0, reply.start - 1 - state.num_prefilled)
        completion = TokenCompletion(
            request.id, ids[reply.start :], reply.logprobs, reason, num_cached
        )
        return [completion]
