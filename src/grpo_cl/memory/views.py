"""What an agent reads at each step: the memory as far as it matters, and the next chunk."""

from grpo_cl.memory.answerers import shown
from grpo_cl.memory.examination import cut
from grpo_cl.memory.instances import Chunk
from grpo_cl.memory.retrieval import Retriever
from grpo_cl.memory.store import MemorySystem
from grpo_cl.memory.tokens import count_tokens

FOUND, NEWEST = 10, 10
"""Entries shown because the chunk speaks of them, and because they are the latest."""


def view(
    memory: MemorySystem, chunk: Chunk, *, tokens: int, retriever: Retriever | None = None
) -> str:
    """Core, entries found by the chunk's text, the newest, and how many there are in all.

    Whatever is not shown cannot be changed, as its id is not known; so what a chunk speaks of
    comes first.
    """
    core = cut(memory.core, tokens)
    left = tokens - count_tokens(core)
    hits = (retriever or Retriever()).search(memory, chunk.content, k=FOUND)
    newest = list(memory.entries.values())[-NEWEST:][::-1]
    lines: dict[int, str] = {}
    for entry in (*(hit.entry for hit in hits), *newest):
        line = shown(entry)
        if entry.id not in lines and count_tokens(line) <= left:
            left -= count_tokens(line)
            lines[entry.id] = line
    return "\n".join([_total(memory, lines), *([f"Core: {core}"] if core else []), *lines.values()])


def _total(memory: MemorySystem, lines: dict[int, str]) -> str:
    kinds: dict[str, int] = {}
    for entry in memory.entries.values():
        kinds[entry.type] = kinds.get(entry.type, 0) + 1
    if not kinds:
        return "Memory: empty."
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    return f"Memory: {counts}; {len(lines)} shown."


def prompt(memory: MemorySystem, chunk: Chunk, *, place: str, tokens: int) -> str:
    """The message that brings a chunk."""
    return f"{view(memory, chunk, tokens=tokens)}\n\nChunk {place}:\n{chunk.content}"
