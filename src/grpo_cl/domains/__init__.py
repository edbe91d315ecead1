"""Domains by name. Adding one is a module and a line here."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

from grpo_cl.domains.base import Domain, Environment
from grpo_cl.registry import pick, with_plugins

__all__ = ["DOMAINS", "TOYS", "Domain", "Environment", "load_domain"]

Factory = Callable[[Path | None], Domain]


def _built_in(path: str, data_dir: Path | None) -> Domain:
    module, name = path.split(":")  # the carrier takes seconds to import, so only when asked
    return getattr(import_module(f"grpo_cl.domains.{module}"), name)(data_dir)


DOMAINS: dict[str, Factory] = {
    "airline": partial(_built_in, "airline:AirlineDomain"),
    "retail": partial(_built_in, "retail:RetailDomain"),
    "telecom": partial(_built_in, "telecom:TelecomDomain"),
    "telecom-workflow": partial(_built_in, "telecom:TelecomWorkflowDomain"),
    "mock": partial(_built_in, "mock:MockDomain"),
    "banking_knowledge": partial(_built_in, "banking:BankingDomain"),
    "doordash": partial(_built_in, "doordash.domain:DoordashDomain"),
    "healthcare": partial(_built_in, "healthcare.domain:HealthcareDomain"),
    "memory": partial(_built_in, "memory.domain:MemoryDomain"),
}

TOYS: dict[str, Factory] = {
    f"toy_{option}": partial(_built_in, f"toy:{option}")
    for option in ("left", "right", "up", "down")
}
"""Bandits for trying algorithms; nobody means them when asking for all domains."""


def load_domain(name: str, data_dir: Path | None = None) -> Domain:
    """Build the domain called ``name``; ``data_dir`` is a τ²-bench checkout with newer tasks."""
    return pick(with_plugins({**TOYS, **DOMAINS}, "grpo_cl.domains"), name, "domain")(data_dir)
