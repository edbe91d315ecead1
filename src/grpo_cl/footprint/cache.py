"""Keys and values of the episodes that are played at once."""

from grpo_cl.errors import ConfigError
from grpo_cl.footprint.overheads import DECODED, GRAPH_LENGTH, MIN_CAPACITY
from grpo_cl.footprint.plan import Plan


def cache_bytes(plan: Plan) -> int:
    """Of all layers of the sampler's cache."""
    return 2 * plan.shape.num_hidden_layers * buffer_bytes(plan)


def kept_bytes(plan: Plan) -> int:
    """What stays of the sampler while the policy learns."""
    sampling = plan.config.sampling
    if sampling.engine == "vllm":
        return 0 if sampling.release_cache else vllm_bytes(plan)
    is_kept = sampling.engine == "transformers" and has_graphs(plan)
    return cache_bytes(plan) if is_kept else 0


def buffer_bytes(plan: Plan) -> int:
    """The keys or the values of one layer; rows and length double until there is room."""
    sampling, shape = plan.config.sampling, plan.shape
    limit = sampling.slots + 1  # one row is nobody's
    rows, length = min(plan.episodes, sampling.slots), plan.length
    if has_graphs(plan):  # made for all rows, and for lengths in steps
        rows, length = limit, length + DECODED
        if length > GRAPH_LENGTH:
            length = -(-length // GRAPH_LENGTH) * GRAPH_LENGTH
    room = min(_doubled(max(length, MIN_CAPACITY)), plan.context)
    return plan.item * min(_doubled(rows), limit) * room * shape.key_width


def has_graphs(plan: Plan) -> bool:
    """Whether tokens are written from CUDA graphs, which weights without a fixed place forbid."""
    return plan.config.sampling.cuda_graphs and not plan.is_sharded


def vllm_bytes(plan: Plan) -> int:
    """VLLM's share of the GPU: a copy of the weights, and a cache in what they leave."""
    share, copy = plan.config.sampling.gpu_share, plan.item * plan.shape.parameters
    row = 2 * plan.item * plan.shape.num_hidden_layers * plan.shape.key_width * plan.length
    taken = round(share * plan.memory)
    if taken < copy + row:
        raise ConfigError(
            f"sampling.gpu_share={share:g} gives vLLM {taken:,} bytes, and the weights with one "
            f"episode of {plan.length} tokens take {copy + row:,}; raise it above "
            f"{(copy + row) / plan.memory:.2f}, or set sampling.engine=transformers"
        )
    return taken


def _doubled(needed: int) -> int:
    size = 1
    while size < needed:
        size *= 2
    return size
