"""Procedural retail tasks."""

from grpo_cl.domains.generators.retail.generator import task_maker

__all__ = ["task_maker"]
