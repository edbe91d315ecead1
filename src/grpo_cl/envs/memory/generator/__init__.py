"""Synthetic conversation generator: instances with gold operations and gold answers."""

from grpo_cl.envs.memory.generator.conversation import Operation
from grpo_cl.envs.memory.generator.instance import (
    SOURCE,
    generate_instance,
    generate_instances,
    gold_operations,
    skills_of,
    with_invented_names,
)
from grpo_cl.envs.memory.generator.parameters import GeneratorParams
from grpo_cl.envs.memory.generator.rule_answerer import RuleAnswerer
from grpo_cl.envs.memory.generator.validation import gold_episode

__all__ = [
    "SOURCE",
    "GeneratorParams",
    "Operation",
    "RuleAnswerer",
    "generate_instance",
    "generate_instances",
    "gold_episode",
    "gold_operations",
    "skills_of",
    "with_invented_names",
]
