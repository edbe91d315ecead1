"""Integration with SkyRL: a ``skyrl_gym`` environment and the training command."""
