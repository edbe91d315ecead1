"""Shared parts of the task generators: drawing tasks, customer requests, and their wording."""
