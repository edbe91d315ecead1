"""What an agent did with each chunk, and the memory it left."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from grpo_cl.memory.entries import Entry
from grpo_cl.memory.instances import Chunk, Instance
from grpo_cl.memory.store import MemorySystem
from grpo_cl.memory.tools import NAME_ALIASES, SKIP, TOOLS, Outcome, Source, execute

_NAMES = "|".join((*TOOLS, *NAME_ALIASES))
_ATTEMPT = re.compile(rf"\b(?:{_NAMES})\b['\"`]?\s*(?:[({{]|,\s*['\"]?(?:arguments|parameters))")


class Call(NamedTuple):
    """One call with what came of it."""

    name: str
    arguments: object
    outcome: Outcome
    before: Entry | None
    """The entry as it was, where the call changed or deleted one."""
    core_before: str = ""
    doubles: int | None = None
    """Another entry that says the same in other order or form, where one was inserted."""


class Step(NamedTuple):
    """One reply of the agent."""

    chunk: Chunk
    calls: tuple[Call, ...]
    """Those that want to change something; a call of ``skip`` is silence."""
    num_malformed: int = 0
    """Calls that were begun and cannot be read."""

    @property
    def num_attempts(self) -> int:
        """Calls, readable or not."""
        return len(self.calls) + self.num_malformed


class Diary:
    """A memory that is written chunk by chunk, and what was done to it."""

    def __init__(
        self, instance: Instance, memory: MemorySystem | None = None, *, stamp: bool = False
    ) -> None:
        self.instance = instance
        self.memory = memory or MemorySystem()
        self.steps: list[Step] = []
        self._past: dict[int, MemorySystem] = {}
        self._asked_early = {question.ask_after for question in instance.questions}
        self._stamp = stamp
        self._read = 0

    @property
    def chunk(self) -> Chunk:
        """The chunk that is being read; the first before any is."""
        return self.instance.chunks[max(self._read - 1, 0)]

    @property
    def num_read(self) -> int:
        """Chunks that were read or are being read."""
        return self._read

    def read_on(self) -> Chunk | None:
        """The next chunk; None after the last."""
        if self._read and self.chunk.chunk_id in self._asked_early:
            self._past[self.chunk.chunk_id] = self.memory.copy()
        if self._read >= len(self.instance.chunks):
            return None
        self._read += 1
        return self.chunk

    def memory_after(self, chunk_id: int | None) -> MemorySystem:
        """The memory as it was once a chunk was dealt with after which something is asked."""
        return self.memory if chunk_id is None else self._past.get(chunk_id, self.memory)

    def call(self, name: str, arguments: object) -> Call:
        """Carry out one call as part of reading the present chunk."""
        chunk = self.chunk if self._read else None
        when = chunk.timestamp if chunk and self._stamp else None
        source = Source(chunk.chunk_id if chunk else None, when)
        before, core = self._named(arguments), self.memory.core
        outcome = execute(self.memory, name, arguments, source=source)
        return Call(name, arguments, outcome, before, core, self._doubles(outcome.entry_id))

    def keep(self, made: Sequence[Call], text: str = "") -> Step:
        """Write down that some calls, made just now, were one reply."""
        kept = tuple(call for call in made if call.outcome.tool != SKIP)
        step = Step(self.chunk, kept, num_malformed(text))
        self.steps.append(step)
        return step

    def write(self, calls: Sequence[tuple[str, object]], text: str = "") -> Step:
        """Carry out the calls of one reply and write it down."""
        return self.keep([self.call(name, arguments) for name, arguments in calls], text)

    def _named(self, arguments: object) -> Entry | None:
        given = arguments if isinstance(arguments, Mapping) else {}
        wanted = given.get("memory_id", given.get("id"))
        return self.memory.entries.get(wanted) if isinstance(wanted, int) else None

    def _doubles(self, entry_id: int | None) -> int | None:
        entry = self.memory.entries.get(entry_id) if entry_id is not None else None
        if entry is None:
            return None
        words = _bag(entry.content)
        others = (each for each in self.memory.entries.values() if each.id != entry.id)
        return next((each.id for each in others if _bag(each.content) == words), None)


def num_malformed(text: str) -> int:
    """Calls in a text that no dialect could read; a tool that is only spoken of is none."""
    return len(_ATTEMPT.findall(text))


def _bag(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.casefold()))
