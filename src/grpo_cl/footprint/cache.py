"""Keys and values of the episodes that are played at once."""

from collections import Counter

from grpo_cl.errors import ConfigError
from grpo_cl.footprint.overheads import (
    DECODED,
    GRAPH_LENGTH,
    JOINED_MODEL,
    LEAST_TRUNK,
    MIN_CAPACITY,
    MOST_TRUNKS,
    RESERVED,
    TRIED_TRUNKS,
)
from grpo_cl.footprint.plan import Plan
from grpo_cl.footprint.trunks import count_trunks, row_tokens, trunk_tokens


def rows_bytes(plan: Plan) -> int:
    """Of all layers of the cache whose rows are the episodes."""
    return 2 * plan.shape.num_hidden_layers * row_buffer(plan)


def trunks_bytes(plan: Plan) -> int:
    """Of all layers of the cache whose rows are the trunks."""
    return 2 * plan.shape.num_hidden_layers * trunk_buffer(plan)


def kept_bytes(plan: Plan) -> int:
    """What stays of the sampler while the policy learns."""
    sampling = plan.config.sampling
    if sampling.engine == "vllm":
        return 0 if sampling.release_cache else vllm_bytes(plan)
    return rows_bytes(plan) + trunks_bytes(plan) if has_graphs(plan) else 0


def copied_bytes(plan: Plan) -> int:
    """What is copied to decode: adapters, and in a small model matrices that read the same."""
    shape = plan.shape
    if not has_graphs(plan) or not shape.can_be_fused:
        return 0
    adapters = plan.trained if plan.has_adapters else 0
    is_small = plan.item * shape.parameters <= JOINED_MODEL
    sources = Counter(linear.source for linear in shape.linears)
    joined = sum(one.parameters for one in shape.linears if sources[one.source] > 1)
    return plan.item * (adapters + is_small * shape.num_hidden_layers * joined)


def row_buffer(plan: Plan) -> int:
    """The keys or the values of one layer; rows and length double until there is room."""
    limit = plan.config.sampling.slots + 1  # one row is nobody's
    rows, length = plan.seats, row_tokens(plan) - 1  # nobody feeds the last token
    if has_graphs(plan):  # made for all rows, and for lengths in steps
        rows, length = limit, max(length + DECODED, RESERVED)
        if length > GRAPH_LENGTH:
            length = -(-length // GRAPH_LENGTH) * GRAPH_LENGTH
    room = min(_doubled(max(length, MIN_CAPACITY)), plan.context)
    return _numbers(plan, min(_doubled(rows), limit), room)


def trunk_buffer(plan: Plan) -> int:
    """The same of the trunks."""
    count, limit = count_trunks(plan), -(-plan.context // LEAST_TRUNK) * LEAST_TRUNK
    if not count:
        return 0
    rows = min(_doubled(max(count, TRIED_TRUNKS)), MOST_TRUNKS)
    return _numbers(plan, rows, min(_doubled(trunk_tokens(plan)), limit))


def has_graphs(plan: Plan) -> bool:
    """Whether tokens are written from CUDA graphs, which weights without a fixed place forbid.

    Graphs are what a GPU gets where the run says nothing.
    """
    sampling = plan.config.sampling
    is_wanted = sampling.engine == "transformers" and sampling.cuda_graphs is not False
    return is_wanted and not plan.is_sharded


def vllm_bytes(plan: Plan) -> int:
    """VLLM's share of the GPU: a copy of the weights, and a cache in what they leave."""
    share, copy = plan.config.sampling.gpu_share, plan.item * plan.shape.parameters
    row = 2 * plan.shape.num_hidden_layers * _numbers(plan, 1, plan.length)
    taken = round(share * plan.memory)
    if taken < copy + row:
        raise ConfigError(
            f"sampling.gpu_share={share:g} gives vLLM {taken:,} bytes, and the weights with one "
            f"episode of {plan.length} tokens take {copy + row:,}; raise it above "
            f"{(copy + row) / plan.memory:.2f}, or set sampling.engine=transformers"
        )
    return taken


def _numbers(plan: Plan, rows: int, length: int) -> int:
    return plan.item * rows * length * plan.shape.key_width


def _doubled(needed: int) -> int:
    size = 1
    while size < needed:
        size *= 2
    return size
