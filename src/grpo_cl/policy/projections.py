"""Linear layers that read the same: computed as one, their adapters with few kernels.

Shapes: B rows, E what they read, F what all of them write, R ranks of all their adapters.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from grpo_cl.policy.adapted import Adapter, parts_of
from grpo_cl.policy.triton_here import kernels_of

WORTHWHILE = 2**31
"""Bytes of a model above which its matrix products take longer than their launch."""


class Projections:
    """Several linear layers, whose weights are copied where that pays, and have to be renewed.

    Weights of adapters always are: they are kept in float32, and read in the precision of the rest.
    """

    def __init__(self, layers: Sequence[nn.Module], *, is_joined: bool) -> None:
        self._layers = layers
        bases = [base for base, _ in map(parts_of, layers)]
        are_plain = all(type(base) is nn.Linear for base in bases)
        are_alike = len({len(list(base.parameters())) for base in bases}) == 1
        self._is_joined = is_joined and are_plain and are_alike and len(bases) > 1
        self._weight_FE: Tensor | None = None
        self._bias_F: Tensor | None = None
        self._down_RE: Tensor | None = None
        self._ups: dict[int, Tensor] = {}
        self._adapters = kernels_of("fused_adapters")

    def __call__(self, given_BE: Tensor) -> Sequence[Tensor]:
        """What each layer writes."""
        bases, adapters = self._parts()
        if self._is_joined:
            assert self._weight_FE is not None, "renewed before it is used"
            found_BF = linear(given_BE, self._weight_FE, self._bias_F)
            found: Sequence[Tensor] = found_BF.split([base.out_features for base in bases], dim=1)
        else:
            found = [base(given_BE) for base in bases]
        if adapters:
            assert self._down_RE is not None, "renewed before it is used"
            inner_SBR, start = self._adapters.lower(given_BE, self._down_RE), 0
            for place, adapter in adapters.items():
                up_FR = self._ups[place]
                self._adapters.lift(inner_SBR, start, up_FR, adapter.scale, found[place])
                start += up_FR.shape[1]
        return found

    @property
    def copied(self) -> list[Tensor]:
        """The weights of which there are copies."""
        bases, adapters = self._parts()
        joined = [w for base in bases for w in base.parameters()] if self._is_joined else []
        return [*joined, *(w for one in adapters.values() for w in (one.down_RI, one.up_OR))]

    @torch.no_grad()
    def renew(self) -> None:
        """Take the weights of now, to the place where the last ones were."""
        bases, adapters = self._parts()
        if self._is_joined:
            self._weight_FE = _renewed(self._weight_FE, [base.weight for base in bases])
            biases = [base.bias for base in bases if base.bias is not None]
            self._bias_F = _renewed(self._bias_F, biases) if biases else None
        if adapters:
            kind: torch.dtype = bases[0].weight.dtype
            downs = [one.down_RI.to(kind) for one in adapters.values()]
            self._down_RE = _renewed(self._down_RE, downs)
            self._ups = {
                place: _renewed(self._ups.get(place), [one.up_OR.to(kind)])
                for place, one in adapters.items()
            }

    def _parts(self) -> tuple[list[Any], dict[int, Adapter]]:
        """The layers without adapters, and the adapters in use by the place of their layer."""
        parts = [parts_of(layer) for layer in self._layers]
        adapters = {place: one for place, (_, one) in enumerate(parts) if one is not None}
        return [base for base, _ in parts], adapters


def _renewed(known: Tensor | None, parts: Sequence[Tensor]) -> Tensor:
    """The parts below one another, where ``known`` is if it is of their size."""
    found = torch.cat(tuple(parts))
    return found if known is None or known.shape != found.shape else known.copy_(found)
