"""Episodes inside SkyRL: an environment of ``skyrl_gym`` and the command that trains with it."""
