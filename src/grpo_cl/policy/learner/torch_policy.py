"""Optimizer steps and checkpoint files of any PyTorch module that is trained as a policy."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from grpo_cl.config import GRPOConfig
from grpo_cl.policy.learner.optimizer import LearnerState, Optimizer

WEIGHTS = "weights.safetensors"


class TorchPolicy:
    """Trains a module with AdamW and clipped gradients.

    Subclasses add ``generate`` and ``get_log_prob`` to become a policy of Mem-α's trainer.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._optimizer = self._optimizer_at(1.0)
        self._learning_rate = 1.0

    def update(self, loss: Tensor, *, learning_rate: float) -> dict[str, float]:
        """One optimizer step on ``loss``; skipped if the loss or a gradient is not finite."""
        self._set_learning_rate(learning_rate)
        self._optimizer.clear()
        loss.backward()
        for parameter in self._optimizer.parameters.values():
            if parameter.grad is None:  # not part of this loss; moments exist for all parameters
                parameter.grad = torch.zeros_like(parameter)
        step = self._optimizer.step(float(loss.detach()))
        return {**step._asdict(), "skipped_updates": float(not step.is_finite)}

    def save_state(self, folder: Path) -> None:
        """Write weights and optimizer state as safetensors and JSON."""
        weights = self.module.state_dict()
        # Copies: safetensors refuses tied weights.
        save_file({name: _copy(tensor) for name, tensor in weights.items()}, folder / WEIGHTS)
        self._optimizer.state_dict().save(folder)

    def load_state(self, folder: Path) -> None:
        """Restore what ``save_state`` wrote."""
        self.module.load_state_dict(load_file(folder / WEIGHTS))
        self._optimizer.load_state_dict(LearnerState.load(folder))

    def _set_learning_rate(self, learning_rate: float) -> None:
        if learning_rate == self._learning_rate:
            return
        state = self._optimizer.state_dict()
        self._optimizer = self._optimizer_at(learning_rate)
        self._optimizer.load_state_dict(state)
        self._learning_rate = learning_rate

    def _optimizer_at(self, learning_rate: float) -> Optimizer:
        settings: dict[str, Any] = {"learning_rate": learning_rate}
        return Optimizer(self.module.named_parameters(), GRPOConfig.model_validate(settings))


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().clone()
