"""Bandits for testing continual-learning algorithms."""
