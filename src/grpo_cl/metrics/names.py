"""Names of metrics in experiment trackers: TRL's name where TRL logs the metric, plus ``cl/``."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

_TRAIN = {
    "reward_mean": "train/reward",
    "clip_fraction": "train/clip_ratio/region_mean",
    "clip_fraction_low": "train/clip_ratio/low_mean",
    "clip_fraction_high": "train/clip_ratio/high_mean",
    "importance_weight": "train/sampling/importance_sampling_ratio/mean",
}
"""Keys of a training step whose name in trackers is not ``train/KEY``."""
TIMES = (
    *("step_s", "rollout_s", "update_s", "play_s"),
    *("peak_sample_mb", "peak_score_mb", "peak_update_mb"),
)
"""Wall times and peak memory, which differ between two runs of one seed."""
_TIMES = {"step_s": "train/step_time"}
_TRANSFER = {
    "average_performance": "cl/avg_acc",
    "backward_transfer": "cl/bwt",
    "forward_transfer": "cl/fwt",
}
_POSITION = frozenset({"task_idx", "step"})
R_MATRIX, EPISODES = "cl/r_matrix", "eval/episodes"
"""Names of the tables."""


def step_names(values: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a training step; keys with an area of their own (``cl/…``) keep it."""
    metrics = numbers(values)
    named = {
        _TRAIN.get(name, name if "/" in name else f"train/{name}"): value
        for name, value in metrics.items()
    }
    if metrics.get("groups") and "zero_variance_groups" in metrics:
        fraction = metrics["zero_variance_groups"] / metrics["groups"]
        named["train/frac_reward_zero_std"] = fraction
    return named


def time_names(values: Mapping[str, Any]) -> dict[str, float]:
    """The wall times and peaks of memory of a training step, and its tokens per second."""
    metrics = numbers(values)
    named = {
        _TIMES.get(name, f"train/{name}"): value for name, value in metrics.items() if name in TIMES
    }
    if metrics.get("rollout_s") and "generated_tokens" in metrics:
        rate = metrics["generated_tokens"] / metrics["rollout_s"]
        named["train/tokens_per_second"] = rate
    return named


def evaluation_names(domain: str, values: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of an evaluation."""
    return {f"eval/{domain}/{name}": value for name, value in numbers(values).items()}


def transfer_names(values: Mapping[str, Any]) -> dict[str, float]:
    """The continual-learning scores."""
    return {_TRANSFER.get(name, f"cl/{name}"): value for name, value in numbers(values).items()}


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers among ``values``, without the position in the run."""
    return {
        name: float(value)
        for name, value in values.items()
        if name not in _POSITION
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and isfinite(value)
    }
