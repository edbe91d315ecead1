"""The sampler protocol: token ids in, token ids and log-probs out, many sequences at once.

A *sequence* is the token ids of one conversation. Each request appends prompt tokens to a sequence
and asks for a completion. A sampler keeps the state of a sequence until it is released.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple, Protocol

from grpo_cl.errors import ContextFullError

TokenConstraint = Callable[[Sequence[int], Sequence[int]], Sequence[int]]
"""Maps the tokens of a completion so far and candidates for its next token to those candidates that
may follow."""


class GenerationRequest(NamedTuple):
    """Prompt tokens to append to a sequence, and how to sample the completion."""

    id: int
    sequence: int
    append: Sequence[int]
    max_new_tokens: int
    temperature: float
    """0 is greedy decoding."""
    top_p: float
    stop_ids: tuple[int, ...]
    """Any of these ends the completion and is its last token."""
    seed: int
    """Token n of the completion uses random number n of this seed, whatever the batch holds."""
    constraint: TokenConstraint | None = None
    """Restricts the completion's tokens; only a ``TransformersSampler`` without CUDA graphs
    applies it."""


class TokenCompletion(NamedTuple):
    """The sampled tokens of one request."""

    id: int
    ids: list[int]
    logprobs: list[float]
    """Log-probs of the ids at the request's temperature over the full vocabulary, before ``top_p``
    filtering, as a trainer computes them. Greedy completions report temperature 1."""
    reason: Literal["stop", "length"]
    num_cached: int = 0
    """Tokens before the completion that were in the KV cache already; 0 if the backend does not
    say."""


class Sampler(Protocol):
    """Generates completions."""

    context: int
    """Most tokens of a sequence, completions included."""

    def submit(self, requests: Iterable[GenerationRequest]) -> None:
        """Queue requests; a sequence has at most one unfinished request."""
        ...

    def poll(self) -> list[TokenCompletion]:
        """Run a bounded amount of work and return the completions that finished, perhaps none."""
        ...

    def release(self, sequence: int) -> None:
        """Drop a sequence and its unfinished request."""
        ...


def check_prompt_length(sequence: int, length: int, context: int) -> None:
    """Raise ``ContextFullError`` for a prompt that is empty or leaves no room for a completion."""
    if not 0 < length < context:
        raise ContextFullError(
            f"sequence {sequence} would have {length} tokens before its reply; a prompt has 1 to "
            f"{context - 1}. Raise sampling.max_context or end the episode."
        )


class DeferredRelease(ABC):
    """Delays releases while a call is in progress: garbage collection may release at any time."""

    def __init__(self) -> None:
        self._pending_releases: list[int] = []
        self._is_busy = False

    def release(self, sequence: int) -> None:
        """Drop a sequence and its unfinished request."""
        self._pending_releases.append(sequence)
        if not self._is_busy:
            self._release_pending()

    @abstractmethod
    def _drop(self, sequence: int) -> None:
        """Free the state of a sequence; an unknown sequence is ignored."""

    @contextmanager
    def _busy(self) -> Generator[None]:
        """Delay releases until the block ends."""
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False
            self._release_pending()

    def _release_pending(self) -> None:
        while self._pending_releases:
            self._drop(self._pending_releases.pop())
