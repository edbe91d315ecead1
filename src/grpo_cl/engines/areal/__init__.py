"""Episodes inside AReaL: a rollout workflow and the command that trains with it."""
