"""Domains by name; a new domain is a module and a line in ``DOMAINS``."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

from grpo_cl.config import GRPOConfig
from grpo_cl.envs.base import Domain, Environment
from grpo_cl.registry import is_in_file, load_from_file, pick, register, with_plugins

__all__ = [
    "DOMAINS",
    "TOYS",
    "Domain",
    "Environment",
    "domain_for",
    "load_domain",
    "register_domain",
]

Factory = Callable[[Path | None], Domain]


def _built_in(path: str, data_dir: Path | None) -> Domain:
    module, name = path.split(":")  # imported on demand: inspect-evals takes seconds to import
    return getattr(import_module(f"grpo_cl.envs.{module}"), name)(data_dir)


DOMAINS: dict[str, Factory] = {
    "airline": partial(_built_in, "airline.domain:AirlineDomain"),
    "retail": partial(_built_in, "retail.domain:RetailDomain"),
    "telecom": partial(_built_in, "telecom.domain:TelecomDomain"),
    "telecom-workflow": partial(_built_in, "telecom.domain:TelecomWorkflowDomain"),
    "mock": partial(_built_in, "mock.domain:MockDomain"),
    "banking_knowledge": partial(_built_in, "banking.domain:BankingDomain"),
    "doordash": partial(_built_in, "doordash.domain:DoordashDomain"),
    "healthcare": partial(_built_in, "healthcare.domain:HealthcareDomain"),
    "memory": partial(_built_in, "memory.domain:MemoryDomain"),
}

TOYS: dict[str, Factory] = {
    f"toy_{option}": partial(_built_in, f"toy.domain:{option}")
    for option in ("left", "right", "up", "down")
}
"""Bandit domains for testing algorithms; not part of "all" domains."""


GROUP = "grpo_cl.domains"
"""The entry point group of domains of other packages."""


def register_domain(name: str, factory: Factory) -> None:
    """Make a domain known to this process, as a name in ``task_order``.

    ``factory`` is a ``Domain`` class, or a function that makes one from ``tau2_data_dir``.
    """
    register(GROUP, name, factory, kind="domain", built_in={**TOYS, **DOMAINS})


def load_domain(name: str, data_dir: Path | None = None, *, tools: str | None = None) -> Domain:
    """The domain called ``name``, or FILE.py:CLASS; ``data_dir`` is a newer τ²-bench checkout.

    ``tools`` is a Python file, MODULE or MODULE:NAME, whose functions become tools beside its own.
    """
    make: Factory
    if is_in_file(name):
        make = load_from_file(name, "domain")
    else:
        make = pick(with_plugins({**TOYS, **DOMAINS}, GROUP), name, "domain")
    if tools is None:
        return make(data_dir)
    from grpo_cl.envs.own_tools import add_tools  # noqa: PLC0415  # inspect-evals is slow to import

    return add_tools(make(data_dir), tools)


def domain_for(config: GRPOConfig, name: str) -> Domain:
    """The domain called ``name`` with the settings of a run."""
    place = config.domain_files.get(name, name)
    return load_domain(place, config.tau2_data_dir, tools=config.tools).configured(config)
