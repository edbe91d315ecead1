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
    *("episode_s", "user_wait_s", "scoring_wait_s", "policy_idle_s"),
    *("model_calls", "model_calls_cached", "model_calls_failed", "model_calls_rejected"),
    *("model_retries", "model_input_tokens", "model_output_tokens", "model_cost"),
)
"""Wall times, peak memory, and calls of hosted models, of which a second run of the seed finds some
in the reply cache: these differ between two runs of one seed."""
_TIMES = {"step_s": "train/step_time"}
_RATIOS = {
    "train/tokens_per_second": ("generated_tokens", "rollout_s"),
    "train/user_wait_share": ("user_wait_s", "episode_s"),
    "train/policy_idle_share": ("policy_idle_s", "step_s"),
}
"""Quotients of two metrics of a step."""
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
    """The metrics of a training step that are in ``TIMES``, and their ratios."""
    metrics = numbers(values)
    named = {
        _TIMES.get(name, f"train/{name}"): value for name, value in metrics.items() if name in TIMES
    }
    for name, (part, whole) in _RATIOS.items():
        if part in metrics and metrics.get(whole):
            named[name] = metrics[part] / metrics[whole]
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
