"""Continual-learning algorithms by name. Adding one is a module and a line here."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from pydantic import ValidationError

from grpo_cl.algorithms.base import CLAlgorithm, PolicyView, TrainerView
from grpo_cl.algorithms.replay import ReplayCL
from grpo_cl.algorithms.sequential import SequentialCL
from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.registry import (
    is_in_file,
    load_from_file,
    pick,
    plugin_paths,
    register,
    registered,
)

__all__ = [
    "ALGORITHMS",
    "CLAlgorithm",
    "PolicyView",
    "ReplayCL",
    "SequentialCL",
    "TrainerView",
    "algorithm_for",
    "find_algorithm",
    "make_algorithm",
    "register_algorithm",
    "require_algorithm",
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
"""The module and class of each algorithm, imported on first use: some of them import torch."""


GROUP = "grpo_cl.algorithms"
"""The entry point group of algorithms of other packages."""


def register_algorithm(name: str, algorithm: type[CLAlgorithm[Any]]) -> None:
    """Make an algorithm known to this process, as ``cl_algorithm=name``.

    Other processes, such as the runs of a campaign, find it only as an entry point.
    """
    _require_algorithm(name, algorithm)
    register(GROUP, name, algorithm, kind="algorithm", built_in=ALGORITHMS)


def _require_algorithm(name: str, given: object) -> None:
    if not (isinstance(given, type) and issubclass(given, CLAlgorithm)):
        raise ConfigError(
            f"the algorithm {name!r} must be a subclass of CLAlgorithm, not {given!r}"
        )


def require_algorithm(name: str) -> None:
    """Raise ``ConfigError`` for an unknown algorithm, without importing it."""
    if not is_in_file(name):
        pick(_known(), name, "algorithm")


def _known() -> dict[str, Any]:
    """The algorithms by name: classes, or the module and class of those not yet imported."""
    return {**plugin_paths(GROUP), **registered(GROUP), **ALGORITHMS}


def find_algorithm(name: str) -> type[CLAlgorithm[Any]]:
    """The class of an algorithm: built-in, registered in code, an entry point, or in a file."""
    if is_in_file(name):
        own = load_from_file(name, "algorithm")
        _require_algorithm(name, own)
        return own
    found = pick(_known(), name, "algorithm")
    if not isinstance(found, str):
        return found
    module, _, attribute = found.partition(":")
    return getattr(import_module(module), attribute)


def algorithm_for(config: GRPOConfig) -> CLAlgorithm[Any]:
    """A new instance of the run's algorithm, checked against the run's settings."""
    algorithm = make_algorithm(config.cl_algorithm, config.cl_options)
    algorithm.check(config)
    return algorithm


def make_algorithm(name: str, options: Mapping[str, Any] | None = None) -> CLAlgorithm[Any]:
    """A new instance of an algorithm with its options."""
    kind = find_algorithm(name)
    try:
        return kind(**(options or {}))
    except ValidationError as error:
        known = ", ".join(kind.options_type.model_fields) or "none"
        first = error.errors()[0]
        key = ".".join(("cl_options", *map(str, first["loc"])))
        raise ConfigError(
            f"{key}: {first['msg']} (got {first['input']!r}); the options of {name} are: {known}"
        ) from error
