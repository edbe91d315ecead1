"""Metrics of a run, continual-learning scores, their statistics, plots and trackers."""
