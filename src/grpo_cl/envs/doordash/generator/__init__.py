"""Generator of tasks about customers of the delivery service."""

from grpo_cl.envs.doordash.generator.generator import task_maker

__all__ = ["task_maker"]
