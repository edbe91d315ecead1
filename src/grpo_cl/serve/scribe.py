"""The thread that writes: prompts in, replies out, many at once, weights replaced in between."""

import itertools
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from typing_extensions import override

from grpo_cl.errors import ContextFullError
from grpo_cl.models.line import Line
from grpo_cl.policy.actor import Desk
from grpo_cl.policy.local import TransformersSampler
from grpo_cl.policy.probing import token_logprobs
from grpo_cl.policy.sampler import Completion, Request
from grpo_cl.policy.voices import Voices
from grpo_cl.serve.gate import Gate
from grpo_cl.serve.orders import RequestError
from grpo_cl.serve.weights import Weights

T = TypeVar("T")


class Prompt(NamedTuple):
    """What is to be written, by whom and how."""

    voice: str
    """The policy or one of its adapters."""
    ids: Sequence[int]
    max_new_tokens: int
    temperature: float
    top_p: float
    stop_ids: tuple[int, ...]
    seed: int


class _VoicedSampler(TransformersSampler):
    """A sampler that writes under one of the names that share a module."""

    def __init__(self, voices: Voices, name: str, slots: int) -> None:
        model = voices.model
        super().__init__(model.module, context=model.context, slots=slots, device=model.device)
        self._voices = voices
        self._name = name

    @override
    def poll(self) -> list[Completion]:
        with self._voices.speaking(self._name):
            return super().poll()


class Room:
    """The conversations of one voice; finished ones stay cached, for they often go on."""

    def __init__(self, voices: Voices, name: str, slots: int) -> None:
        self._sampler = _VoicedSampler(voices, name, slots)
        self._desk = Desk(self._sampler)
        self._slots = slots
        self._busy = 0
        self._resting: dict[int, list[int]] = {}
        self._numbers = itertools.count()

    async def write(self, prompt: Prompt) -> Completion:
        """The reply to a prompt."""
        sequence, known = self._sequence(prompt.ids)
        request = Request(
            id=sequence,
            sequence=sequence,
            append=prompt.ids[known:],
            max_new_tokens=prompt.max_new_tokens,
            temperature=prompt.temperature,
            top_p=prompt.top_p,
            stop_ids=prompt.stop_ids,
            seed=prompt.seed,
        )
        self._busy += 1
        is_written = False
        try:
            completion = await self._desk.reply(request)
            is_written = True
        finally:
            self._busy -= 1
            if not is_written:
                self._sampler.release(sequence)
        self._resting[sequence] = [*prompt.ids, *completion.ids]
        self._make_room(0)
        return completion

    def forget(self) -> None:
        """Let go of everything cached."""
        for sequence in list(self._resting):
            self._drop(sequence)

    def _sequence(self, ids: Sequence[int]) -> tuple[int, int]:
        """A resting conversation that ``ids`` continue, with its length, or else a new one."""
        fitting = [
            (len(known), sequence)
            for sequence, known in self._resting.items()
            if len(known) < len(ids) and list(ids[: len(known)]) == known
        ]
        if fitting:
            length, sequence = max(fitting)
            del self._resting[sequence]
            return sequence, length
        self._make_room(1)
        return next(self._numbers), 0

    def _make_room(self, count: int) -> None:
        # One that rests would keep its row from a newcomer as long as anybody writes.
        while self._resting and len(self._resting) + self._busy + count > self._slots:
            self._drop(next(iter(self._resting)))

    def _drop(self, sequence: int) -> None:
        del self._resting[sequence]
        self._sampler.release(sequence)


class Scribe:
    """Writes in a thread of its own, so that the server answers while the model works."""

    def __init__(self, weights: Weights, *, slots: int) -> None:
        self.weights = weights
        self._slots = slots
        self._line = Line()
        self._rooms: dict[str, Room] = {}
        self.gate = self._line.send(_made(Gate)).result()

    def send(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin ``work`` in the thread."""
        return self._line.send(work)

    async def write(self, prompt: Prompt) -> Completion:
        """The reply to a prompt; called in the thread."""
        async with self.gate.passage():
            self.weights.require(prompt.voice)
            if prompt.voice not in self._rooms:
                self._rooms[prompt.voice] = Room(self.weights.voices, prompt.voice, self._slots)
            try:
                return await self._rooms[prompt.voice].write(prompt)
            except ContextFullError as error:
                raise RequestError(str(error), code="context_length_exceeded") from error

    async def score(self, voice: str, ids: Sequence[int]) -> list[float]:
        """The log-probs of all tokens but the first, at temperature 1; called in the thread."""
        async with self.gate.passage():
            self.weights.require(voice)
            with self.weights.voices.speaking(voice):
                return token_logprobs(self.weights.voices.model, ids)

    async def update(self, change: Callable[[], None]) -> None:
        """Replace weights once every reply under way is written; called in the thread."""
        async with self.gate.closed():
            change()
            self._rooms.clear()

    async def forget(self) -> None:
        """Let go of everything cached; called in the thread."""
        for room in self._rooms.values():
            room.forget()

    def close(self) -> None:
        """End the thread and what it writes."""
        self._line.close()


async def _made(kind: Callable[[], T]) -> T:
    """Built in the loop it belongs to."""
    return kind()
