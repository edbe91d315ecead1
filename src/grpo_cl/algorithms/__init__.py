"""Continual-learning algorithms by name. Adding one is a module and a line here."""

from collections.abc import Callable

from grpo_cl.algorithms.base import CLAlgorithm
from grpo_cl.algorithms.replay import ReplayCL
from grpo_cl.algorithms.sequential import SequentialCL
from grpo_cl.registry import pick, with_plugins

__all__ = ["ALGORITHMS", "CLAlgorithm", "ReplayCL", "SequentialCL", "make_algorithm"]

ALGORITHMS: dict[str, Callable[[], CLAlgorithm]] = {
    "replay": ReplayCL,
    "sequential": SequentialCL,
}


def make_algorithm(name: str) -> CLAlgorithm:
    """A fresh algorithm; other packages add theirs in the entry points ``grpo_cl.algorithms``."""
    return pick(with_plugins(ALGORITHMS, "grpo_cl.algorithms"), name, "algorithm")()
