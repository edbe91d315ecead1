"""Memory while episodes are played: the cache of keys and values, and passes over new tokens."""

from collections.abc import Iterator

from grpo_cl.footprint.activations import FLOAT, forward_of_layer, forward_of_rooted
from grpo_cl.footprint.cache import (
    kept_bytes,
    row_buffer,
    rows_bytes,
    trunk_buffer,
    trunks_bytes,
    vllm_bytes,
)
from grpo_cl.footprint.overheads import DRAW, DRAW_TOP_P, PREFILL_TOKENS
from grpo_cl.footprint.phase import Phase, fullest
from grpo_cl.footprint.plan import Plan
from grpo_cl.footprint.training import resident
from grpo_cl.footprint.trunks import Root, count_trunks, roots, trunk_tokens

SAMPLE = "sample"


def sample_phase(plan: Plan) -> Phase:
    """Reading prompts, reading what tools answered, or writing, whichever needs most."""
    start, engine = resident(plan, SAMPLE), plan.config.sampling.engine
    if plan.is_sharded:  # weights are whole on every process while it plays
        start = start.with_parts(weights=plan.item * plan.shape.parameters)
    if engine == "server":
        return start  # others write
    if engine == "vllm":
        return start.with_parts(sampler=vllm_bytes(plan) - kept_bytes(plan))
    both = trunks_bytes(plan) + rows_bytes(plan)
    # A buffer that grows is there twice for a moment, the old one half as large.
    playing = start.with_parts(sampler=both - kept_bytes(plan) + row_buffer(plan) // 2)
    return fullest(
        [
            *_planting(start, plan),
            *(playing.with_parts(activations=size) for size in _readings(plan)),
            playing.with_parts(logits=_draw(plan)),
        ]
    )


def _planting(start: Phase, plan: Plan) -> Iterator[Phase]:
    """Reading the last trunk; there are no rows yet unless they stayed, or others are playing."""
    if not count_trunks(plan):
        return
    has_rows = count_trunks(plan) > 1 and plan.episodes > plan.seats
    held = trunks_bytes(plan) + (rows_bytes(plan) if has_rows else 0)
    growing = max(held - kept_bytes(plan), 0) + trunk_buffer(plan) // 2
    whole = trunk_tokens(plan)
    yield start.with_parts(
        sampler=growing, activations=_prefill(plan, 1, Root(1, 0), new=whole, seen=whole)
    )


def _readings(plan: Plan) -> Iterator[int]:
    """The rest of the prompts, and answers of tools, of rows that go on from one place."""
    size = plan.episodes // plan.beginnings
    for root in roots(plan):
        rest, rows = plan.prompt_tokens - root.start, min(root.groups * size, plan.seats)
        prompts = -(-rows // size)  # of a group one is read and the others copy it
        yield _prefill(plan, prompts, root, new=rest, seen=rest)
        yield _prefill(plan, rows, root, new=plan.turn_tokens, seen=plan.length - root.start)


def _prefill(plan: Plan, rows: int, root: Root, *, new: int, seen: int) -> int:
    """One layer of a pass over ``new`` tokens of as many of the rows as go together."""
    if not new:
        return 0
    width = min(new, PREFILL_TOKENS)
    together = min(max(1, PREFILL_TOKENS // width), rows)
    each, copied = forward_of_layer(plan, has_adapters=plan.has_adapters), together * seen
    if root.start:
        each = max(each, forward_of_rooted(plan))
        copied += root.start if plan.item == FLOAT else 0  # no fast kernel shares key heads then
    # Keys and values are copied for every query head, and the mask is made of two.
    keys = 2 * plan.item * copied * plan.shape.query_width
    return together * width * each + keys + 2 * plan.item * together * width * seen


def _draw(plan: Plan) -> int:
    sorts = DRAW_TOP_P if plan.config.sampling.top_p < 1 else 0
    return plan.seats * plan.shape.vocab_size * (plan.item + DRAW + sorts)
