"""Numbers of passes, kept on the device until all passes are launched.

Reading a number waits for the device, and what is launched late leaves it idle meanwhile.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict

import torch
from torch import Tensor

from grpo_cl.policy.loss import LossMetrics, LossResult
from grpo_cl.policy.ranks import Ranks

NAMES = {
    "kl": "loss/kl",
    "clip_fraction": "loss/clip_fraction",
    "ratio_max": "loss/ratio_max",
    "mismatch_kl": "loss/mismatch_kl",
    "importance_weight": "loss/importance_mean",
}
"""What an update calls the means of the loss."""


class Tally:
    """Sums over the tokens of this rank's passes."""

    def __init__(self) -> None:
        self._numbers: list[Tensor] = []
        self._entropies: list[tuple[Tensor, Tensor]] = []

    def add(self, result: LossResult, entropy_BT: Tensor, counted_BT: Tensor) -> None:
        """Count a pass in; entropies where ``counted_BT``."""
        self._numbers.append(result.numbers)
        self._entropies.append((entropy_BT.detach(), counted_BT))

    def summary(self, ranks: Ranks) -> dict[str, float]:
        """Means per token over all ranks; what was not measured, or is not finite, is absent."""
        metrics = LossMetrics()
        for numbers in _read(self._numbers):
            metrics += LossMetrics.of(numbers)
        own = asdict(metrics)
        largest = ranks.maximum({"ratio_max": own.pop("ratio_max")})
        entropies = [entropy_BT[counted_BT].sum() for entropy_BT, counted_BT in self._entropies]
        total = ranks.sum({**own, "entropy": added(entropies)})
        entropy = total.pop("entropy")
        if not total["tokens"]:
            return {}
        means = LossMetrics(**total, **largest).summary()
        named = {name: means[key] for name, key in NAMES.items() if key in means}
        named["entropy"] = entropy / total["tokens"]
        return {name: value for name, value in named.items() if math.isfinite(value)}


def added(scalars: Sequence[Tensor]) -> float:
    """The sum, one after another in double precision."""
    total = 0.0
    for (value,) in _read([scalar.reshape(1) for scalar in scalars]):
        total += value
    return total


def _read(tensors: Sequence[Tensor]) -> list[list[float]]:
    """Tensors of one length as numbers, in one transfer from the device."""
    return torch.stack(list(tensors)).tolist() if tensors else []
