"""Procedural airline tasks."""

from grpo_cl.domains.generators.airline.generator import task_maker

__all__ = ["task_maker"]
