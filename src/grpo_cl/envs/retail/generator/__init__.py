"""Procedural retail tasks."""

from grpo_cl.envs.retail.generator.generator import task_maker

__all__ = ["task_maker"]
