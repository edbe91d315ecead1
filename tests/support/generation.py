"""Generated tasks of a domain, through the public ``Domain.generate``."""

from functools import partial
from typing import Any

from grpo_cl.envs import load_domain
from grpo_cl.types import Task


def _generate(name: str, database: Any, **options: Any) -> list[Task]:
    domain = load_domain(name)
    assert database is None or type(database) is type(domain.database.model)  # type: ignore[attr-defined]
    return domain.generate(**options)


airline = partial(_generate, "airline")
retail = partial(_generate, "retail")
telecom = partial(_generate, "telecom")
