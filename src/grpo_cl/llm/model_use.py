"""Calls of hosted models, and the time in which episodes wait for them, since the last ``take``.

With r(t) running episodes and w(t) calls in flight at time t:

- ``episode_s`` = ∫ r dt
- ``user_wait_s`` = ∫ min(w, r) dt: an episode has one call in flight at most
- ``scoring_wait_s`` = ∫ [r = 0 and w > 0] dt: judges are called after the episodes
- ``policy_idle_s`` = ∫ [w > 0 and w ≥ r] dt: no episode waits for the policy
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager

from grpo_cl.llm.prompt import Reply

CALL_COUNTS = (
    *("model_calls", "model_calls_cached", "model_calls_failed", "model_calls_rejected"),
    *("model_retries", "model_input_tokens", "model_output_tokens", "model_cost"),
)
"""Calls, cached ones included; answered by the cache; without a reply; whose reply was not used;
failed attempts before another one; tokens and cost of the replies that did not come from the
cache."""
WAIT_TIMES = ("episode_s", "user_wait_s", "scoring_wait_s", "policy_idle_s")


class ModelUse:
    """Counts calls and integrates waiting times; several threads may use it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._cost = 0.0
        self._seconds = dict.fromkeys(WAIT_TIMES, 0.0)
        self._num_running = self._num_in_flight = 0
        self._changed_at = clock()

    @contextmanager
    def episode(self) -> Generator[None]:
        """An episode runs inside."""
        self._change(running=1)
        try:
            yield
        finally:
            self._change(running=-1)

    @contextmanager
    def call(self) -> Generator[None]:
        """A call is in flight inside."""
        self._change(in_flight=1)
        try:
            yield
        finally:
            self._change(in_flight=-1)

    def add(self, reply: Reply) -> None:
        """Count a call with a reply."""
        self.count("model_calls")
        if reply.is_cached:
            self.count("model_calls_cached")
            return
        self.count("model_input_tokens", reply.completion.input_tokens)
        self.count("model_output_tokens", reply.completion.output_tokens)
        with self._lock:
            self._cost += reply.cost

    def count(self, name: str, amount: int = 1) -> None:
        """Add to one of the counts."""
        with self._lock:
            self._counts[name] += amount

    def take(self) -> dict[str, float]:
        """Counts and seconds, which restart at zero; nothing if no model was called."""
        self._change()
        with self._lock:
            counts = {name: float(self._counts[name]) for name in CALL_COUNTS}
            taken = counts | {"model_cost": self._cost} | self._seconds
            self._counts.clear()
            self._cost = 0.0
            self._seconds = dict.fromkeys(WAIT_TIMES, 0.0)
        return taken if taken["model_calls"] else {}

    def _change(self, *, running: int = 0, in_flight: int = 0) -> None:
        """Integrate up to now, then change the numbers of episodes and calls."""
        with self._lock:
            now = self._clock()
            elapsed_s, self._changed_at = now - self._changed_at, now
            r, w = self._num_running, self._num_in_flight
            self._seconds["episode_s"] += r * elapsed_s
            self._seconds["user_wait_s"] += min(w, r) * elapsed_s
            self._seconds["scoring_wait_s"] += elapsed_s if w and not r else 0.0
            self._seconds["policy_idle_s"] += elapsed_s if w and w >= r else 0.0
            self._num_running += running
            self._num_in_flight += in_flight
