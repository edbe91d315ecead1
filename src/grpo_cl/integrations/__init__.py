"""Tasks, users and rewards of this project in other training engines: docs/engines/."""

from importlib.util import find_spec

from grpo_cl.errors import ConfigError


def require_packages(engine: str, *packages: str) -> None:
    """Raise ``ConfigError`` with install instructions if a package of ``engine`` is missing."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{engine} is not installed here ({', '.join(missing)} missing); engines have "
            f"conflicting requirements, so install requirements/{engine}.txt in a separate "
            f"environment as described in docs/engines/{engine}.md"
        )
