"""The policy as tensors: its model, its sampler, its losses and its learner."""
