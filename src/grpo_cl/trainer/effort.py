"""What playing episodes takes, counted where they are played."""

import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from grpo_cl.types import Trajectory

COUNTS = ("episodes", "turns", "tool_calls", "generated_tokens", "simulator_calls")
"""Episodes, replies of the agent, calls the environment answered, tokens the policy wrote, and
replies of the simulated user."""


class Effort:
    """Counts since they were last taken; episodes that were thrown away are in them too."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._seconds = 0.0

    @contextmanager
    def timed(self) -> Generator[None]:
        """Count the time spent within."""
        started = time.monotonic()
        yield
        self._seconds += time.monotonic() - started

    def add(self, played: Sequence[Trajectory]) -> None:
        """Count some episodes."""
        for trajectory in played:
            roles = Counter(message.role for message in trajectory.messages)
            self._counts["episodes"] += 1
            self._counts["turns"] += roles["assistant"]
            self._counts["tool_calls"] += len(trajectory.tool_calls)
            self._counts["generated_tokens"] += sum(
                trajectory.tokens.mask if trajectory.tokens else ()
            )
            self._counts["simulator_calls"] += 0 if trajectory.solo else roles["user"]

    def take(self) -> dict[str, float]:
        """The counts, and the seconds as ``play_s``; both begin at zero again."""
        taken = {name: float(self._counts[name]) for name in COUNTS}
        taken["play_s"] = self._seconds
        self._counts.clear()
        self._seconds = 0.0
        return taken
