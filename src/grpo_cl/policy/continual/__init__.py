"""What continual-learning algorithms do with tensors; each module is one mechanism."""
