"""Generator of tasks about patients of the clinics."""

from grpo_cl.envs.healthcare.generator.generator import task_maker

__all__ = ["task_maker"]
