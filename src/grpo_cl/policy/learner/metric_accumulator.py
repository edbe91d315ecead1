"""On-device metric accumulator: sums of micro-batches, read once per update.

Reading a value synchronises with the device; between micro-batches that would leave it idle.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import torch
from torch import Tensor

from grpo_cl.policy.model.distributed import DistributedContext


@dataclass(frozen=True, kw_only=True)
class LossMetrics:
    """Sums over tokens; add them over micro-batches and ranks, then take the ``summary``."""

    tokens: float = 0.0
    clipped_low: float = 0.0
    """Tokens whose ratio is clipped at the lower bound."""
    clipped_high: float = 0.0
    ratio: float = 0.0
    importance_weight: float = 0.0
    """Weights of the sampler/trainer correction; 1 per token if it is off."""
    mismatch_kl: float = 0.0
    """KL of the trainer's old policy from the sampler's, by k3."""
    kl: float = 0.0
    """KL of the policy from the reference, by the configured estimator."""
    kl_tokens: float = 0.0
    """Tokens with reference log-probs."""
    ratio_max: float = 0.0
    """A maximum, not a sum."""

    @classmethod
    def from_sums(cls, sums: Sequence[float]) -> "LossMetrics":
        """The metrics whose fields have these values, in their order."""
        names = (field.name for field in fields(cls))
        return cls(**dict(zip(names, sums, strict=True)))

    def __add__(self, other: "LossMetrics") -> "LossMetrics":
        return LossMetrics(
            tokens=self.tokens + other.tokens,
            clipped_low=self.clipped_low + other.clipped_low,
            clipped_high=self.clipped_high + other.clipped_high,
            ratio=self.ratio + other.ratio,
            importance_weight=self.importance_weight + other.importance_weight,
            mismatch_kl=self.mismatch_kl + other.mismatch_kl,
            kl=self.kl + other.kl,
            kl_tokens=self.kl_tokens + other.kl_tokens,
            ratio_max=max(self.ratio_max, other.ratio_max),
        )

    def summary(self) -> dict[str, float]:
        """Means per token under the keys of ``metrics.json``; unmeasured ones are absent."""
        if not self.tokens:
            return {}
        return {
            **({"kl": self.kl / self.kl_tokens} if self.kl_tokens else {}),
            "clip_fraction": (self.clipped_low + self.clipped_high) / self.tokens,
            "clip_fraction_low": self.clipped_low / self.tokens,
            "clip_fraction_high": self.clipped_high / self.tokens,
            "ratio_mean": self.ratio / self.tokens,
            "ratio_max": self.ratio_max,
            "mismatch_kl": self.mismatch_kl / self.tokens,
            "importance_weight": self.importance_weight / self.tokens,
        }


class MetricAccumulator:
    """Sums over the tokens of this rank's micro-batches."""

    def __init__(self) -> None:
        self._sums: list[Tensor] = []
        self._entropies: list[tuple[Tensor, Tensor]] = []

    def add(self, metric_sums: Tensor, entropy_BT: Tensor, mask_BT: Tensor) -> None:
        """Add a micro-batch: the values of its ``LossMetrics``, and entropies under the mask."""
        self._sums.append(metric_sums)
        self._entropies.append((entropy_BT.detach(), mask_BT))

    def summary(self, ranks: DistributedContext) -> dict[str, float]:
        """Means per token over all ranks; unmeasured and non-finite ones are absent."""
        metrics = LossMetrics()
        for sums in _to_lists(self._sums):
            metrics += LossMetrics.from_sums(sums)
        own = asdict(metrics)
        maxima = ranks.maximum({"ratio_max": own.pop("ratio_max")})
        entropies = [entropy_BT[mask_BT].sum() for entropy_BT, mask_BT in self._entropies]
        total = ranks.sum({**own, "entropy": sum_scalars(entropies)})
        entropy = total.pop("entropy")
        if not total["tokens"]:
            return {}
        means = LossMetrics(**total, **maxima).summary()
        means["entropy"] = entropy / total["tokens"]
        return {name: value for name, value in means.items() if math.isfinite(value)}


def sum_scalars(scalars: Sequence[Tensor]) -> float:
    """The sum in double precision, in the order given."""
    total = 0.0
    for (value,) in _to_lists([scalar.reshape(1) for scalar in scalars]):
        total += value
    return total


def _to_lists(tensors: Sequence[Tensor]) -> list[list[float]]:
    """The values of tensors of one length, in one transfer from the device."""
    return torch.stack(list(tensors)).tolist() if tensors else []
