"""What experiment trackers call our numbers: the names of TRL where it has one, plus ``cl/``."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

_TRAIN = {
    "reward_mean": "train/reward",
    "loss/kl": "train/kl",
    "loss/entropy": "train/entropy",
    "loss/clip_fraction": "train/clip_ratio/region_mean",
    "loss/clip_fraction_low": "train/clip_ratio/low_mean",
    "loss/clip_fraction_high": "train/clip_ratio/high_mean",
    "step_s": "train/step_time",
}
_TRANSFER = {
    "average_performance": "cl/avg_acc",
    "backward_transfer": "cl/bwt",
    "forward_transfer": "cl/fwt",
}
_POSITION = frozenset({"task_idx", "step"})


def step_names(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a training step; a name that has its own area keeps it."""
    found = numbers(values)
    named = {
        _TRAIN.get(name, name if "/" in name else f"train/{name}"): value
        for name, value in found.items()
    }
    if found.get("groups") and "zero_variance_groups" in found:
        share = found["zero_variance_groups"] / found["groups"]
        named["train/frac_reward_zero_std"] = share
    return named


def evaluation_names(domain: str, values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an evaluation, and the cell of the R-matrix if it is ``after`` a stage."""
    found = numbers(values)
    named = {f"eval/{domain}/{name}": value for name, value in found.items()}
    if "after" in values and "reward_mean" in found:
        named[f"cl/acc_matrix/{values['after']}/{domain}"] = found["reward_mean"]
    return named


def transfer_names(values: Mapping[str, Any]) -> dict[str, float]:
    """The continual-learning scores."""
    return {_TRANSFER.get(name, f"cl/{name}"): value for name, value in numbers(values).items()}


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers among ``values``, positions left out."""
    return {
        name: float(value)
        for name, value in values.items()
        if name not in _POSITION
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and isfinite(value)
    }
