"""Long beginnings that the sampler keeps once, and where the rows of its cache go on from.

As ``policy.trunks`` decides it, for prompts of one length that begin with ``shared_tokens`` alike.
"""

from typing import NamedTuple

from grpo_cl.footprint.overheads import LEAST_TRUNK, MOST_TRUNKS, PAGE
from grpo_cl.footprint.plan import Plan


class Root(NamedTuple):
    """Groups whose rows go on from the same place, and are read together."""

    groups: int
    start: int
    """Tokens before a row's first; 0 where rows hold the whole prompt."""


def trunk_tokens(plan: Plan) -> int:
    """Of each trunk, in whole pages; 0 where none is kept."""
    whole = (plan.prompt_tokens - 1) // PAGE * PAGE  # the last token is fed when the reply begins
    # Layers that look at a window do not find what is kept apart.
    return whole if whole >= LEAST_TRUNK and plan.shape.can_be_packed else 0


def count_trunks(plan: Plan) -> int:
    """Trunks that are there at once: one where prompts share half of it, else one a group."""
    whole = trunk_tokens(plan)
    if not whole:
        return 0
    return 1 if 2 * _common(plan) >= whole else min(plan.beginnings, MOST_TRUNKS)


def roots(plan: Plan) -> list[Root]:
    """Where the rows of all groups go on from."""
    count, common = count_trunks(plan), _common(plan)
    own = [Root(1, trunk_tokens(plan))] * count
    others = plan.beginnings - count
    has_common = count > 0 and common >= LEAST_TRUNK
    return own + ([Root(others, common if has_common else 0)] if others else [])


def row_tokens(plan: Plan) -> int:
    """What the longest row holds of an episode."""
    return plan.length - min(root.start for root in roots(plan))


def _common(plan: Plan) -> int:
    return min(plan.shared_tokens // PAGE * PAGE, trunk_tokens(plan))
