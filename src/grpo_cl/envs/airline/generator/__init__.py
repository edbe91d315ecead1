"""Procedural airline tasks."""

from grpo_cl.envs.airline.generator.generator import task_maker

__all__ = ["task_maker"]
