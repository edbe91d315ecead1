"""Episodes inside verl: an agent loop for its rollouts, and the command that trains with it."""
