"""The memory environment: sends the chunks of an instance and runs the memory tools."""

from collections.abc import Iterable, Mapping
from typing import Any

from typing_extensions import override

from grpo_cl.config import MemoryConfig
from grpo_cl.envs.base import StreamingEnvironment
from grpo_cl.envs.memory import Chunk, Instance, MemorySystem
from grpo_cl.envs.memory.retrieval.retriever import Retriever
from grpo_cl.envs.memory.retrieval.tokenizer import count_tokens
from grpo_cl.envs.memory.rewards.episode import MemoryEpisode
from grpo_cl.envs.memory.rewards.question_answering import format_entry, truncate
from grpo_cl.envs.memory.store.tools import NAME_ALIASES, SKIP, TOOLS
from grpo_cl.envs.tau2 import Tau2Environment
from grpo_cl.envs.toolkit import Toolkit
from grpo_cl.errors import ToolError

NUM_RETRIEVED, NUM_NEWEST = 10, 10
"""Entries in an observation: those retrieved by the chunk, and the newest."""


class MemoryTable:
    """A memory with the interface of a database."""

    def __init__(self, memory: MemorySystem) -> None:
        self._memory = memory

    def changes(self) -> Mapping[tuple[str, str], str | None]:
        """All entries and the core text, since an episode starts with an empty memory."""
        entries = self._memory.entries.items()
        changed = {
            ("entries", str(entry_id)): entry.model_dump_json() for entry_id, entry in entries
        }
        return {**changed, ("core", "text"): self._memory.core} if self._memory.core else changed

    def base(self, records: Iterable[tuple[str, str]]) -> dict[tuple[str, str], None]:
        """None for each record, since an episode starts with an empty memory."""
        return dict.fromkeys(records)

    def sha256(self) -> str:
        """The hash of the whole memory."""
        return self._memory.hash()


class MemoryTools(Toolkit):
    """The memory tools of one episode."""

    tools = frozenset(TOOLS)
    writes = frozenset({*TOOLS, *NAME_ALIASES}) - {SKIP}

    def __init__(self, episode: MemoryEpisode) -> None:
        self.episode = episode
        self.db: Any = MemoryTable(episode.memory)

    @override
    def use(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Execute a call; an invalid one raises ``ToolError`` with the text the agent reads."""
        outcome = self.episode.call(name, arguments).outcome
        if not outcome.ok:
            raise ToolError(outcome.message)
        return outcome.message


class MemoryEnvironment(Tau2Environment, StreamingEnvironment):
    """Sends one chunk per observation, with the entries of the memory that relate to it."""

    def __init__(self, instance: Instance, settings: MemoryConfig) -> None:
        self.episode = MemoryEpisode(instance, stamp=settings.stamp)
        self._view_tokens = settings.view_tokens
        super().__init__(MemoryTools(self.episode), None, solo=False)

    @override
    def next_observation(self) -> str | None:
        chunk = self.episode.next_chunk()
        if chunk is None:
            return None
        position = f"{self.episode.num_read} of {len(self.episode.instance.chunks)}"
        return observation(
            self.episode.memory, chunk, position=position, view_tokens=self._view_tokens
        )


def observation(memory: MemorySystem, chunk: Chunk, *, position: str, view_tokens: int) -> str:
    """The message with a chunk and a view of the memory."""
    return f"{view(memory, chunk, tokens=view_tokens)}\n\nChunk {position}:\n{chunk.content}"


def view(memory: MemorySystem, chunk: Chunk, *, tokens: int) -> str:
    """The number of entries, the core text, the entries retrieved by the chunk, and the newest.

    An agent can change only the entries whose ids it sees, so retrieved entries come first.
    """
    core = truncate(memory.core, tokens)
    left = tokens - count_tokens(core)
    hits = Retriever().search(memory, chunk.content, k=NUM_RETRIEVED)
    newest = list(memory.entries.values())[-NUM_NEWEST:][::-1]
    lines: dict[int, str] = {}
    for entry in (*(hit.entry for hit in hits), *newest):
        line = format_entry(entry)
        if entry.id not in lines and count_tokens(line) <= left:
            left -= count_tokens(line)
            lines[entry.id] = line
    summary = _summary(memory, num_shown=len(lines))
    return "\n".join([summary, *([f"Core: {core}"] if core else []), *lines.values()])


def _summary(memory: MemorySystem, *, num_shown: int) -> str:
    counts: dict[str, int] = {}
    for entry in memory.entries.values():
        counts[entry.type] = counts.get(entry.type, 0) + 1
    if not counts:
        return "Memory: empty."
    by_type = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    return f"Memory: {by_type}; {num_shown} shown."
