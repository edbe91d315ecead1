"""Integration with AReaL: a rollout workflow and the training command."""
