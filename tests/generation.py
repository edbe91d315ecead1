"""Generated tasks of a domain, taken the way users take them."""

from functools import partial
from typing import Any

from grpo_cl.domains import load_domain
from grpo_cl.types import Task


def _generate(name: str, database: Any, **dials: Any) -> list[Task]:
    domain = load_domain(name)
    assert database is None or type(database) is type(domain.database.model)  # type: ignore[attr-defined]
    return domain.generate(**dials)


airline = partial(_generate, "airline")
retail = partial(_generate, "retail")
telecom = partial(_generate, "telecom")
