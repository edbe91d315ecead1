"""The memory domain: an agent reads chunks and writes a memory that must answer questions."""

from grpo_cl.envs.memory.instances import Chunk, Instance, Question
from grpo_cl.envs.memory.retrieval.tokenizer import count_tokens
from grpo_cl.envs.memory.store.system import Entry, MemorySystem, Version
from grpo_cl.envs.memory.store.taxonomy import Taxonomy, default_taxonomy, read_taxonomy
from grpo_cl.envs.memory.store.tools import Outcome, Source, execute, schemas
from grpo_cl.envs.memory.store.validation import Limits

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
