"""Training: the loop, its episodes, its record."""

from grpo_cl.trainer.loop import GRPOTrainer, Policy

__all__ = ["GRPOTrainer", "Policy"]
