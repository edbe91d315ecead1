"""Procedural telecom tasks."""

from grpo_cl.domains.generators.telecom.generator import task_maker

__all__ = ["task_maker"]
