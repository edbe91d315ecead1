"""A memory that an agent writes and that questions are answered from."""

from grpo_cl.memory.entries import Entry, Version
from grpo_cl.memory.instances import Chunk, Instance, Question
from grpo_cl.memory.rules import Limits
from grpo_cl.memory.store import MemorySystem
from grpo_cl.memory.taxonomy import Taxonomy, default_taxonomy, read_taxonomy
from grpo_cl.memory.tokens import count_tokens
from grpo_cl.memory.tools import Outcome, Source, execute, schemas

__all__ = [
    "Chunk",
    "Entry",
    "Instance",
    "Limits",
    "MemorySystem",
    "Outcome",
    "Question",
    "Source",
    "Taxonomy",
    "Version",
    "count_tokens",
    "default_taxonomy",
    "execute",
    "read_taxonomy",
    "schemas",
]
