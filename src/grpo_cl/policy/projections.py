"""Linear layers that read the same, computed as one.

Shapes: B rows, E what they read, F what all of them write.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from grpo_cl.policy.adapted import project

WORTHWHILE = 2**31
"""Bytes of a model above which its matrix products take longer than their launch."""


class Projections:
    """Several linear layers; their weights are copied, where that pays, and have to be renewed."""

    def __init__(self, layers: Sequence[nn.Module], *, is_joined: bool) -> None:
        self._layers = layers
        self._plain = [layer for layer in layers if type(layer) is nn.Linear]
        is_plain = len(self._plain) == len(layers)  # adapters stay apart
        are_alike = len({len(list(layer.parameters())) for layer in layers}) == 1
        self._is_joined = is_joined and is_plain and are_alike
        self._weight_FE: Tensor | None = None
        self._bias_F: Tensor | None = None

    def __call__(self, given_BE: Tensor) -> Sequence[Tensor]:
        """What each layer writes."""
        if not self._is_joined:
            return [project(layer, given_BE) for layer in self._layers]
        assert self._weight_FE is not None, "renewed before it is used"
        found_BF = linear(given_BE, self._weight_FE, self._bias_F)
        return found_BF.split([layer.out_features for layer in self._plain], dim=1)

    @property
    def stamp(self) -> int:
        """Another whenever a weight was written to."""
        if not self._is_joined:
            return 0
        weights = [weight for layer in self._plain for weight in layer.parameters()]
        return sum(weight._version + weight.data_ptr() for weight in weights)

    @torch.no_grad()
    def renew(self) -> None:
        """Take the weights of now, to the place where the last ones were."""
        if not self._is_joined:
            return
        weight_FE = torch.cat(tuple(layer.weight for layer in self._plain))
        named = [pair for layer in self._plain for pair in layer.named_parameters()]
        biases = tuple(weight for name, weight in named if name == "bias")
        if self._weight_FE is None:
            self._weight_FE = weight_FE
            self._bias_F = torch.cat(biases) if biases else None
            return
        self._weight_FE.copy_(weight_FE)
        if self._bias_F is not None:
            self._bias_F.copy_(torch.cat(biases))
