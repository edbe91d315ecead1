"""Instances from files on disk, in our format and in those of public benchmarks."""

from collections.abc import Callable, Mapping
from pathlib import Path

from grpo_cl.memory.instances import Instance
from grpo_cl.memory.loaders.files import Reading
from grpo_cl.memory.loaders.jsonl import load_jsonl, save_jsonl
from grpo_cl.memory.loaders.locomo import load_locomo
from grpo_cl.memory.loaders.longmemeval import load_longmemeval
from grpo_cl.memory.loaders.memalpha import load_memalpha
from grpo_cl.memory.loaders.memoryagentbench import load_memoryagentbench
from grpo_cl.memory.loaders.personamem import load_personamem
from grpo_cl.registry import pick

LOADERS: Mapping[str, Callable[[Path, Reading], list[Instance]]] = {
    "jsonl": load_jsonl,
    "locomo": load_locomo,
    "longmemeval": load_longmemeval,
    "memalpha": load_memalpha,
    "memoryagentbench": load_memoryagentbench,
    "personamem": load_personamem,
}


def load_instances(path: Path, name: str, reading: Reading | None = None) -> list[Instance]:
    """The instances in a file of the format called ``name``."""
    return pick(LOADERS, name, "memory format")(path, reading or Reading())


__all__ = ["LOADERS", "Reading", "load_instances", "save_jsonl"]
