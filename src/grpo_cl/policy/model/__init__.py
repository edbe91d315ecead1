"""The trained model: loading, saving, log-probs, reference model, process group."""

from grpo_cl.policy.model.policy_model import PolicyModel

__all__ = ["PolicyModel"]
