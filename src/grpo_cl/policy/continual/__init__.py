"""Tensor operations of continual-learning algorithms, one mechanism per module."""
