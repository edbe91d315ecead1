"""The state of a memory episode: chunks read, steps taken, and the memory."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from grpo_cl.envs.memory.instances import Chunk, Instance
from grpo_cl.envs.memory.store.system import Entry, MemorySystem
from grpo_cl.envs.memory.store.tools import NAME_ALIASES, SKIP, TOOLS, Outcome, Source, execute

_NAMES = "|".join((*TOOLS, *NAME_ALIASES))
_ATTEMPT = re.compile(rf"\b(?:{_NAMES})\b['\"`]?\s*(?:[({{]|,\s*['\"]?(?:arguments|parameters))")


class ExecutedCall(NamedTuple):
    """A tool call with its outcome and the state it replaced."""

    name: str
    arguments: object
    outcome: Outcome
    before: Entry | None
    """The earlier version of an updated or deleted entry."""
    core_before: str
    duplicate_of: int | None
    """Another entry with the same set of words as the written one."""


class Step(NamedTuple):
    """One reply of the agent."""

    chunk: Chunk
    calls: tuple[ExecutedCall, ...]
    """All calls except ``skip``."""
    num_malformed: int = 0
    """Calls in the reply that cannot be parsed."""

    @property
    def num_attempts(self) -> int:
        """Parsed and malformed calls."""
        return len(self.calls) + self.num_malformed


class MemoryEpisode:
    """One pass over the chunks of an instance, with the memory and the steps taken."""

    def __init__(
        self, instance: Instance, memory: MemorySystem | None = None, *, stamp: bool = False
    ) -> None:
        self.instance = instance
        self.memory = memory or MemorySystem()
        self.steps: list[Step] = []
        self._snapshots: dict[int, MemorySystem] = {}
        """Memories after the chunks at which questions are asked."""
        self._snapshot_chunks = {question.ask_after for question in instance.questions}
        self._stamp = stamp
        self._num_read = 0

    @property
    def chunk(self) -> Chunk:
        """The current chunk; before the first step the first chunk."""
        return self.instance.chunks[max(self._num_read - 1, 0)]

    @property
    def num_read(self) -> int:
        """The number of chunks read, with the current one."""
        return self._num_read

    def next_chunk(self) -> Chunk | None:
        """Advance to the next chunk; None after the last."""
        if self._num_read and self.chunk.chunk_id in self._snapshot_chunks:
            self._snapshots[self.chunk.chunk_id] = self.memory.copy()
        if self._num_read >= len(self.instance.chunks):
            return None
        self._num_read += 1
        return self.chunk

    def memory_after(self, chunk_id: int | None) -> MemorySystem:
        """The memory after a chunk at which questions are asked; None for the final memory."""
        return self.memory if chunk_id is None else self._snapshots.get(chunk_id, self.memory)

    def call(self, name: str, arguments: object) -> ExecutedCall:
        """Execute one call at the current chunk."""
        chunk = self.chunk if self._num_read else None
        timestamp = chunk.timestamp if chunk and self._stamp else None
        source = Source(chunk.chunk_id if chunk else None, timestamp)
        before, core_before = self._target(arguments), self.memory.core
        outcome = execute(self.memory, name, arguments, source=source)
        duplicate_of = self._duplicate_of(outcome.entry_id)
        return ExecutedCall(name, arguments, outcome, before, core_before, duplicate_of)

    def record_step(self, calls: Sequence[ExecutedCall], text: str) -> Step:
        """Record executed calls and the reply's text as one step."""
        changes = tuple(call for call in calls if call.outcome.tool != SKIP)
        step = Step(self.chunk, changes, num_malformed(text))
        self.steps.append(step)
        return step

    def apply(self, calls: Sequence[tuple[str, object]], text: str = "") -> Step:
        """Execute the calls of one reply and record the step."""
        return self.record_step([self.call(name, arguments) for name, arguments in calls], text)

    def _target(self, arguments: object) -> Entry | None:
        given = arguments if isinstance(arguments, Mapping) else {}
        entry_id = given.get("memory_id", given.get("id"))
        return self.memory.entries.get(entry_id) if isinstance(entry_id, int) else None

    def _duplicate_of(self, entry_id: int | None) -> int | None:
        entry = self.memory.entries.get(entry_id) if entry_id is not None else None
        if entry is None:
            return None
        words = _word_set(entry.content)
        others = (other for other in self.memory.entries.values() if other.id != entry.id)
        return next((other.id for other in others if _word_set(other.content) == words), None)


def num_malformed(text: str) -> int:
    """The number of unparsed calls in a text; a tool name alone is no call."""
    return len(_ATTEMPT.findall(text))


def _word_set(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.casefold()))
