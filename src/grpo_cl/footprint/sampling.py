"""Memory while episodes are played: the cache of keys and values, and passes over new tokens."""

from grpo_cl.footprint.activations import forward_of_layer
from grpo_cl.footprint.cache import buffer_bytes, cache_bytes, kept_bytes, vllm_bytes
from grpo_cl.footprint.overheads import DRAW, DRAW_TOP_P, PREFILL_TOKENS
from grpo_cl.footprint.phase import Phase, fullest
from grpo_cl.footprint.plan import Plan
from grpo_cl.footprint.training import resident

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
    # A buffer that grows is there twice for a moment, the old one half as large.
    growing = cache_bytes(plan) - kept_bytes(plan) + buffer_bytes(plan) // 2
    start = start.with_parts(sampler=growing)
    rows = min(plan.episodes, plan.config.sampling.slots)
    size = plan.config.num_samples_per_prompt if plan.is_family else 1
    prompts = -(-rows // size)  # of a group one is read and the others copy it
    reading = [
        _prefill(plan, prompts, new=plan.prompt_tokens, seen=plan.prompt_tokens),
        _prefill(plan, rows, new=plan.turn_tokens, seen=plan.length),
    ]
    return fullest(
        [
            *(start.with_parts(activations=size) for size in reading),
            start.with_parts(logits=_draw(plan, rows)),
        ]
    )


def _prefill(plan: Plan, rows: int, *, new: int, seen: int) -> int:
    """One layer of a pass over ``new`` tokens of as many of the rows as go together."""
    if not new:
        return 0
    width = min(new, PREFILL_TOKENS)
    together = min(max(1, PREFILL_TOKENS // width), rows)
    layer = together * width * forward_of_layer(plan, has_adapters=plan.has_adapters)
    # Keys and values are copied for every query head, and the mask is made of two.
    copied = 2 * plan.item * together * seen * plan.shape.query_width
    return layer + copied + 2 * plan.item * together * width * seen


def _draw(plan: Plan, rows: int) -> int:
    sorts = DRAW_TOP_P if plan.config.sampling.top_p < 1 else 0
    return rows * plan.shape.vocab_size * (plan.item + DRAW + sorts)
