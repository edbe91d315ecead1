"""Integration with verl: an agent loop and the training command."""
