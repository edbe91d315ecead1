"""GRPO training and a continual-learning benchmark for tool-using language agents."""
