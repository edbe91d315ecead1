"""Token ids in, token ids and log-probabilities out, many conversations at once.

A *sequence* is one conversation. Each request appends what the policy reads next and asks for a
reply; what a sampler keeps of everything before stays until the sequence is released.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple, Protocol

from grpo_cl.errors import ContextFullError


class Request(NamedTuple):
    """What a sequence reads next, and how its reply is drawn."""

    id: int
    sequence: int
    append: Sequence[int]
    max_new_tokens: int
    temperature: float
    """0 takes the likeliest token."""
    top_p: float
    stop_ids: tuple[int, ...]
    """Any of these ends the reply and belongs to it."""
    seed: int
    """Token n of the reply is drawn with number n of this seed, whoever else is in the batch."""


class Completion(NamedTuple):
    """A reply."""

    id: int
    ids: list[int]
    logprobs: list[float]
    """Of the ids at the request's temperature over the whole vocabulary, whatever ``top_p`` left
    out, as a trainer computes them; a greedy reply's are at temperature 1."""
    reason: Literal["stop", "length"]


class Sampler(Protocol):
    """Writes replies."""

    context: int
    """Tokens of a sequence, replies included."""

    def submit(self, requests: Iterable[Request]) -> None:
        """Take requests; a sequence has one at a time."""
        ...

    def poll(self) -> list[Completion]:
        """Work for a while; the replies finished meanwhile, perhaps none."""
        ...

    def release(self, sequence: int) -> None:
        """Forget a sequence and whatever it still waits for."""
        ...


def require_room(sequence: int, length: int, context: int) -> None:
    """Refuse a prompt that is empty or leaves no room for a reply."""
    if not 0 < length < context:
        raise ContextFullError(
            f"sequence {sequence} would have {length} tokens before its reply; a prompt has 1 to "
            f"{context - 1}. Raise sampling.max_context or end the episode."
        )


class Releasing(ABC):
    """Forgets sequences, but not while it is at work: the collector may release one at any time."""

    def __init__(self) -> None:
        self._released: list[int] = []
        self._is_busy = False

    def release(self, sequence: int) -> None:
        """Forget a sequence and whatever it still waits for."""
        self._released.append(sequence)
        if not self._is_busy:
            self._sweep()

    @abstractmethod
    def _forget(self, sequence: int) -> None:
        """Let go of what is kept of a sequence, which may be unknown."""

    @contextmanager
    def _busy(self) -> Generator[None]:
        """Releases wait meanwhile."""
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False
            self._sweep()

    def _sweep(self) -> None:
        while self._released:
            self._forget(self._released.pop())
