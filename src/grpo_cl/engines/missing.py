"""What to say where an engine is not installed."""

from importlib.util import find_spec

from grpo_cl.errors import ConfigError


def require_packages(engine: str, *packages: str) -> None:
    """Refuse to go on without the packages of an engine, and say how to get them."""
    absent = [name for name in packages if find_spec(name) is None]
    if absent:
        raise ConfigError(
            f"{engine} is not installed here ({', '.join(absent)} missing); engines exclude each "
            f"other, so give it an environment of its own, with what requirements/{engine}.txt "
            f"names; docs/engines/{engine}.md says how"
        )
