"""Continual-learning algorithms by name. Adding one is a module and a line here."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from pydantic import ValidationError

from grpo_cl.algorithms.base import CLAlgorithm, TrainerView
from grpo_cl.algorithms.replay import ReplayCL
from grpo_cl.algorithms.sequential import SequentialCL
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.registry import pick, plugin_paths

__all__ = [
    "ALGORITHMS",
    "CLAlgorithm",
    "ReplayCL",
    "SequentialCL",
    "TrainerView",
    "algorithm_for",
    "find_algorithm",
    "make_algorithm",
]

ALGORITHMS: dict[str, str] = {
    "agem": "grpo_cl.algorithms.agem:AgemCL",
    "clear": "grpo_cl.algorithms.trajectory_replay:ClearCL",
    "der": "grpo_cl.algorithms.der:DerCL",
    "domain_lora": "grpo_cl.algorithms.domain_lora:DomainLoraCL",
    "ewc": "grpo_cl.algorithms.ewc:EwcCL",
    "joint": "grpo_cl.algorithms.joint:JointCL",
    "kl_old": "grpo_cl.algorithms.kl_old:KLOldCL",
    "l2_init": "grpo_cl.algorithms.l2:L2InitCL",
    "l2_sp": "grpo_cl.algorithms.l2:L2SpCL",
    "mas": "grpo_cl.algorithms.mas:MasCL",
    "merge": "grpo_cl.algorithms.merge:MergeCL",
    "olora": "grpo_cl.algorithms.olora:OLoraCL",
    "rapo": "grpo_cl.algorithms.rapo:RapoCL",
    "replay": "grpo_cl.algorithms.replay:ReplayCL",
    "sequential": "grpo_cl.algorithms.sequential:SequentialCL",
    "si": "grpo_cl.algorithms.si:SiCL",
    "single": "grpo_cl.algorithms.single:SingleCL",
    "trajectory_replay": "grpo_cl.algorithms.trajectory_replay:TrajectoryReplayCL",
}
"""Where each algorithm is; it is imported when it is used, some need torch."""


def find_algorithm(name: str) -> type[CLAlgorithm[Any]]:
    """The class of an algorithm; other packages add theirs as entry points."""
    paths = {**plugin_paths("grpo_cl.algorithms"), **ALGORITHMS}
    module, _, attribute = pick(paths, name, "algorithm").partition(":")
    return getattr(import_module(module), attribute)


def algorithm_for(config: GRPOConfig) -> CLAlgorithm[Any]:
    """The algorithm of a run, fresh; one that cannot serve these settings refuses them."""
    algorithm = make_algorithm(config.cl_algorithm, config.cl_options)
    algorithm.check(config)
    return algorithm


def make_algorithm(name: str, options: Mapping[str, Any] | None = None) -> CLAlgorithm[Any]:
    """A fresh algorithm with its options."""
    kind = find_algorithm(name)
    try:
        return kind(**(options or {}))
    except ValidationError as error:
        known = ", ".join(kind.options_type.model_fields) or "none"
        found = error.errors()[0]
        place = ".".join(("cl_options", *map(str, found["loc"])))
        raise ConfigError(
            f"{place}: {found['msg']} (got {found['input']!r}); the options of {name} are: {known}"
        ) from error
