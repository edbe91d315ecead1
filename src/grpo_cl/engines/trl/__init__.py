"""Episodes inside TRL: environments and rollouts for its ``GRPOTrainer``, and the command."""
