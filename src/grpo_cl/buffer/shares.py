"""How much of each earlier domain is drawn."""

from collections.abc import Sequence
from random import Random


def earlier_domains(order: Sequence[str], domain: str) -> tuple[str, ...]:
    """The domains that were learned before ``domain``."""
    return tuple(order[: order.index(domain)])


def even_shares(count: int, domains: Sequence[str], rng: Random) -> dict[str, int]:
    """``count`` spread over the domains as evenly as it goes; what is left over goes by chance."""
    share, rest = divmod(count, len(domains))
    lucky = set(rng.sample(range(len(domains)), rest))
    return {name: share + (place in lucky) for place, name in enumerate(domains)}
