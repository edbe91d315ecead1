"""Tasks about customers of the delivery service."""

from grpo_cl.domains.generators.doordash.generator import task_maker

__all__ = ["task_maker"]
