"""Procedural telecom tasks."""

from grpo_cl.envs.telecom.generator.generator import task_maker

__all__ = ["task_maker"]
