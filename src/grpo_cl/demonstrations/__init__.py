"""Episodes to learn from before any reward is to be had."""

from grpo_cl.demonstrations.gold import agent_turns, demonstrate

__all__ = ["agent_turns", "demonstrate"]
