"""Integration with TRL: rollouts and environments for ``GRPOTrainer``, and the training command."""
