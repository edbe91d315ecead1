"""Instances made up from a world that changes: every answer is known, and so is what to keep."""

from grpo_cl.memory.generator.instance import (
    SOURCE,
    generate_instance,
    generate_instances,
    gold_operations,
)
from grpo_cl.memory.generator.knobs import Knobs
from grpo_cl.memory.generator.reader import LexiconReader
from grpo_cl.memory.generator.soundness import gold_diary
from grpo_cl.memory.generator.story import Operation

__all__ = [
    "SOURCE",
    "Knobs",
    "LexiconReader",
    "Operation",
    "generate_instance",
    "generate_instances",
    "gold_diary",
    "gold_operations",
]
