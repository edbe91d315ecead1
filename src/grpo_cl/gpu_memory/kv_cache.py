"""Bytes of the sampler's KV caches: one slot per episode, and shared prefixes stored once.

Which prefixes are stored follows ``policy/inference/prefix_cache.py``, for prompts of equal length
whose first ``shared_tokens`` tokens are the same.
"""

from collections import Counter
from typing import NamedTuple

from grpo_cl.errors import ConfigError
from grpo_cl.gpu_memory.constants import (
    GRAPH_STEPS,
    MAX_GRAPH_LENGTH,
    MAX_MERGED_BYTES,
    MAX_PREFIXES,
    MIN_CAPACITY,
    MIN_PREFIX,
    PAGE_SIZE,
    PROBE_PREFIX_SLOTS,
    RESERVED_TOKENS,
)
from grpo_cl.gpu_memory.workload import Workload


class PrefixUse(NamedTuple):
    """Groups that attend to the same cached prefix, and are prefilled together."""

    groups: int
    length: int
    """Tokens of the prefix; 0 where the slots hold the whole prompt."""


def prefix_tokens(workload: Workload) -> int:
    """Tokens of each cached prefix, in whole pages; 0 where none is cached."""
    # The last token of the prompt is fed when the reply starts.
    pages = (workload.prompt_tokens - 1) // PAGE_SIZE * PAGE_SIZE
    # Sliding-window layers do not support cascade attention.
    return pages if pages >= MIN_PREFIX and workload.shape.can_be_packed else 0


def count_prefixes(workload: Workload) -> int:
    """Prefixes cached at once: one where prompts share half of it, else one per group."""
    length = prefix_tokens(workload)
    if not length:
        return 0
    if 2 * _common_tokens(workload) >= length:
        return 1
    return min(workload.distinct_prompts, MAX_PREFIXES)


def prefix_uses(workload: Workload) -> list[PrefixUse]:
    """The prefix that each group attends to."""
    count, common = count_prefixes(workload), _common_tokens(workload)
    own = [PrefixUse(1, prefix_tokens(workload))] * count
    others = workload.distinct_prompts - count
    has_common = count > 0 and common >= MIN_PREFIX
    return own + ([PrefixUse(others, common if has_common else 0)] if others else [])


def slot_tokens(workload: Workload) -> int:
    """Most tokens of an episode that its own slot holds."""
    return workload.length - min(use.length for use in prefix_uses(workload))


def _common_tokens(workload: Workload) -> int:
    return min(workload.shared_tokens // PAGE_SIZE * PAGE_SIZE, prefix_tokens(workload))


def slot_cache_bytes(workload: Workload) -> int:
    """The KV cache of the episodes, all layers."""
    return 2 * workload.shape.num_hidden_layers * slot_buffer_bytes(workload)


def prefix_cache_bytes(workload: Workload) -> int:
    """The KV cache of the shared prefixes, all layers."""
    return 2 * workload.shape.num_hidden_layers * prefix_buffer_bytes(workload)


def retained_cache_bytes(workload: Workload) -> int:
    """KV caches that stay allocated during the update."""
    sampling = workload.config.sampling
    if sampling.engine == "vllm":
        return 0 if sampling.release_cache else vllm_bytes(workload)
    if not uses_cuda_graphs(workload):
        return 0
    return slot_cache_bytes(workload) + prefix_cache_bytes(workload)


def decoder_copy_bytes(workload: Workload) -> int:
    """Weights copied for decoding: adapters, and merged linear layers."""
    shape = workload.shape
    if not uses_cuda_graphs(workload) or not shape.can_be_fused:
        return 0
    adapters = workload.trainable_parameters if workload.has_lora else 0
    by_input: Counter[str] = Counter()
    for linear in shape.linears:
        by_input[linear.source] += workload.dtype_bytes * linear.parameters
    qkv, gate_up = (shape.num_hidden_layers * by_input[name] for name in ("attention", "mlp"))
    is_small = workload.dtype_bytes * shape.parameters <= MAX_MERGED_BYTES
    merged = qkv * (qkv <= MAX_MERGED_BYTES) + gate_up * is_small
    return workload.dtype_bytes * adapters + merged


def slot_buffer_bytes(workload: Workload) -> int:
    """Keys or values of one layer; slots and capacity double until they suffice."""
    limit = workload.config.sampling.slots + 1  # one dummy slot, for padded tokens
    slots, length = workload.slots, slot_tokens(workload) - 1  # the last token is never fed
    if uses_cuda_graphs(workload):  # captured for all slots, and for lengths in steps
        slots, length = limit, max(length + GRAPH_STEPS, RESERVED_TOKENS)
        if length > MAX_GRAPH_LENGTH:
            length = -(-length // MAX_GRAPH_LENGTH) * MAX_GRAPH_LENGTH
    capacity = min(_next_power_of_two(max(length, MIN_CAPACITY)), workload.context)
    return _buffer_bytes(workload, min(_next_power_of_two(slots), limit), capacity)


def prefix_buffer_bytes(workload: Workload) -> int:
    """Keys or values of one layer of the prefix cache."""
    count, limit = count_prefixes(workload), -(-workload.context // MIN_PREFIX) * MIN_PREFIX
    if not count:
        return 0
    slots = min(_next_power_of_two(max(count, PROBE_PREFIX_SLOTS)), MAX_PREFIXES)
    capacity = min(_next_power_of_two(prefix_tokens(workload)), limit)
    return _buffer_bytes(workload, slots, capacity)


def uses_cuda_graphs(workload: Workload) -> bool:
    """Whether tokens are decoded by CUDA graphs: the default, unless weights are sharded."""
    sampling = workload.config.sampling
    is_enabled = sampling.engine == "transformers" and sampling.cuda_graphs is not False
    return is_enabled and not workload.is_sharded  # sharded weights have no fixed address


def vllm_bytes(workload: Workload) -> int:
    """Memory reserved by vLLM: a copy of the weights, and a KV cache in the remainder."""
    share = workload.config.sampling.gpu_share
    weights = workload.dtype_bytes * workload.shape.parameters
    episode = 2 * workload.shape.num_hidden_layers * _buffer_bytes(workload, 1, workload.length)
    reserved = round(share * workload.memory)
    if reserved < weights + episode:
        raise ConfigError(
            f"sampling.gpu_share={share:g} gives vLLM {reserved:,} bytes, and the weights with one "
            f"episode of {workload.length} tokens take {weights + episode:,}; raise it above "
            f"{(weights + episode) / workload.memory:.2f}, or set sampling.engine=transformers"
        )
    return reserved


def _buffer_bytes(workload: Workload, slots: int, capacity: int) -> int:
    return workload.dtype_bytes * slots * capacity * workload.shape.key_width


def _next_power_of_two(minimum: int) -> int:
    size = 1
    while size < minimum:
        size *= 2
    return size
