"""Procedural tasks of the clinics' patient service."""

from grpo_cl.domains.generators.healthcare.generator import task_maker

__all__ = ["task_maker"]
