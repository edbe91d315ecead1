"""Memory while episodes are sampled: KV caches, prefills and token sampling."""

from collections.abc import Iterator

from grpo_cl.gpu_memory.activations import cascade_attention_forward_bytes, layer_forward_bytes
from grpo_cl.gpu_memory.constants import GPU_PREFILL_TOKENS, SAMPLING_BYTES, TOP_P_BYTES
from grpo_cl.gpu_memory.kv_cache import (
    PrefixUse,
    count_prefixes,
    prefix_buffer_bytes,
    prefix_cache_bytes,
    prefix_tokens,
    prefix_uses,
    retained_cache_bytes,
    slot_buffer_bytes,
    slot_cache_bytes,
    vllm_bytes,
)
from grpo_cl.gpu_memory.phase import Phase, highest_peak, resident_phase
from grpo_cl.gpu_memory.workload import FLOAT32_BYTES, Workload

SAMPLE = "sample"


def sample_phase(workload: Workload) -> Phase:
    """Prefill of prompts, prefill of tool results, or decoding, whichever has the highest peak."""
    start, engine = resident_phase(workload, SAMPLE), workload.config.sampling.engine
    if workload.is_sharded and engine == "transformers":  # unsharded while a process samples
        start = start.with_parts(weights=workload.dtype_bytes * workload.shape.parameters)
    if engine == "server":
        return start  # sampling takes place on other GPUs
    if engine == "vllm":
        return start.with_parts(sampler=vllm_bytes(workload) - retained_cache_bytes(workload))
    caches = prefix_cache_bytes(workload) + slot_cache_bytes(workload)
    # A growing buffer is briefly allocated twice; the old one is half as large.
    growing = slot_buffer_bytes(workload) // 2
    sampling = start.with_parts(sampler=caches - retained_cache_bytes(workload) + growing)
    return highest_peak(
        [
            *_prefix_prefill(start, workload),
            *(sampling.with_parts(activations=size) for size in _slot_prefills(workload)),
            sampling.with_parts(logits=_sampling_bytes(workload)),
        ]
    )


def _prefix_prefill(start: Phase, workload: Workload) -> Iterator[Phase]:
    """Prefill of the last prefix.

    No slots are allocated yet, unless graphs retain them or other episodes are under way.
    """
    if not count_prefixes(workload):
        return
    has_slots = count_prefixes(workload) > 1 and workload.episodes > workload.slots
    caches = prefix_cache_bytes(workload) + (slot_cache_bytes(workload) if has_slots else 0)
    growing = prefix_buffer_bytes(workload) // 2
    sampler = max(caches - retained_cache_bytes(workload), 0) + growing
    length = prefix_tokens(workload)
    prefill = _prefill_bytes(workload, 1, PrefixUse(1, 0), new=length, total=length)
    yield start.with_parts(sampler=sampler, activations=prefill)


def _slot_prefills(workload: Workload) -> Iterator[int]:
    """Prefills of the prompts' remainders, and of tool results, by shared prefix."""
    group_size = workload.episodes // workload.distinct_prompts
    for use in prefix_uses(workload):
        rest = workload.prompt_tokens - use.length
        rows = min(use.groups * group_size, workload.slots)
        prompts = -(-rows // group_size)  # one prefill per group; its other slots are copies
        yield _prefill_bytes(workload, prompts, use, new=rest, total=rest)
        total = workload.length - use.length
        yield _prefill_bytes(workload, rows, use, new=workload.turn_tokens, total=total)


def _prefill_bytes(workload: Workload, rows: int, use: PrefixUse, *, new: int, total: int) -> int:
    """Activations of one layer in a prefill of ``new`` tokens in as many rows as fit in one."""
    if not new:
        return 0
    item, width = workload.dtype_bytes, min(new, GPU_PREFILL_TOKENS)
    batch = min(max(1, GPU_PREFILL_TOKENS // width), rows)
    per_token = layer_forward_bytes(workload, has_lora=workload.has_lora)
    expanded = batch * total
    if use.length:
        per_token = max(per_token, cascade_attention_forward_bytes(workload))
        # No fast float32 kernel supports grouped-query attention.
        expanded += use.length if item == FLOAT32_BYTES else 0
    # Keys and values are expanded to every query head; the mask is built from two masks.
    keys_and_values = 2 * item * expanded * workload.shape.query_width
    return batch * width * per_token + keys_and_values + 2 * item * batch * width * total


def _sampling_bytes(workload: Workload) -> int:
    top_p = TOP_P_BYTES if workload.config.sampling.top_p < 1 else 0
    per_logit = workload.dtype_bytes + SAMPLING_BYTES + top_p
    return workload.slots * workload.shape.vocab_size * per_logit
