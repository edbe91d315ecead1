"""Activation memory: bytes that autograd saves, and temporaries of forward and backward passes.

Bytes are per token of one layer unless a micro-batch is given. Operations are those of the
transformers models, one tensor each, or the fused kernels of ``policy/kernels/fused_blocks.py``;
docs/memory-use.md lists them.
"""

from grpo_cl.gpu_memory.workload import FLOAT32_BYTES, MicroBatch, Workload

NORM_BACKWARD_BYTES = 18
"""Bytes per hidden unit that the backward pass of a norm adds: gradients and products."""


def layer_saved_bytes(workload: Workload, batch: MicroBatch) -> int:
    """What autograd saves of one layer in a forward pass of ``batch``."""
    per_token = _norms(workload) + _mlp(workload) + _lora(workload)
    return batch.tokens * per_token + _attention(workload, batch)


def final_norm_saved_bytes(workload: Workload) -> int:
    """What autograd saves of the final norm, which is never fused, and the token id."""
    return _norm(workload, workload.shape.hidden_size, 1) + 8


def mlp_backward_bytes(workload: Workload) -> int:
    """What the backward pass of an MLP adds to the saved tensors: gradients inside it."""
    # Fused, the saved product of gate and up projection is freed before the gate's backward.
    is_float32 = workload.has_lora and not uses_fused_blocks(workload)
    item = FLOAT32_BYTES if is_float32 else workload.dtype_bytes
    shape = workload.shape
    return 2 * item * shape.intermediate_size + workload.dtype_bytes * shape.hidden_size


def norm_backward_bytes(workload: Workload) -> int:
    """What the backward pass of the final norm adds, when all activations are still saved."""
    return NORM_BACKWARD_BYTES * workload.shape.hidden_size


def layer_forward_bytes(workload: Workload, *, has_lora: bool) -> int:
    """Peak of one layer's forward pass without gradients."""
    shape, item = workload.shape, workload.dtype_bytes
    # An adapter's output, its scaled copy and the sum are float32, beside the gate.
    inner = item + 3 * FLOAT32_BYTES if has_lora else 3 * item
    return inner * shape.intermediate_size + 3 * item * shape.hidden_size


def fused_layer_forward_bytes(workload: Workload) -> int:
    """Peak of the forward pass of one fused layer on packed sequences, without gradients."""
    shape = workload.shape
    return workload.dtype_bytes * (3 * shape.intermediate_size + 5 * shape.hidden_size)


def cascade_attention_forward_bytes(workload: Workload) -> int:
    """Peak of cascade attention without gradients.

    Queries, their padded copy, the outputs for suffix and prefix, both concatenated, weighted in
    float32, and their sum.
    """
    shape, item = workload.shape, workload.dtype_bytes
    outputs = (7 * item + 3 * FLOAT32_BYTES) * shape.query_width
    return outputs + 2 * item * (shape.hidden_size + shape.key_width)


def attention_backward_bytes(workload: Workload, batch: MicroBatch) -> int:
    """What the backward pass of attention adds in a layer whose MLP has been freed.

    Gradients of keys and values have one copy per query head; those of queries are in float32 too.
    """
    shape = workload.shape
    gradients = workload.dtype_bytes * (3 * shape.query_width + 2 * shape.key_width)
    per_token = gradients + FLOAT32_BYTES * shape.query_width - _mlp(workload)
    return batch.tokens * per_token + 2 * _attention_matrix(workload, batch)


def attention_forward_bytes(workload: Workload, batch: MicroBatch) -> int:
    """Peak of attention in one layer without gradients."""
    shape, item = workload.shape, workload.dtype_bytes
    per_token = item * (shape.hidden_size + 2 * (shape.query_width + shape.key_width))
    if workload.shares_prompts and shape.can_be_packed:
        # Prefix attention; unless a kernel merges both outputs in place, they are float32.
        is_merged_in_place = workload.has_triton and item < FLOAT32_BYTES
        outputs = 0 if is_merged_in_place else 2 * FLOAT32_BYTES
        per_token += (item + outputs) * shape.query_width
    return batch.tokens * per_token + 3 * _attention_matrix(workload, batch)


def _attention_matrix(workload: Workload, batch: MicroBatch) -> int:
    """Attention probabilities of a micro-batch, where the kernel materializes them."""
    if not materializes_attention(workload):
        return 0
    heads = workload.shape.num_attention_heads
    return FLOAT32_BYTES * heads * batch.tokens * workload.length


def materializes_attention(workload: Workload) -> bool:
    """Whether attention on a GPU computes and saves the full attention matrix.

    For padded sequences PyTorch chooses the kernel: flash attention does not support float32, and
    the memory-efficient kernel does not support grouped-query attention.
    """
    shape = workload.shape
    has_grouped_queries = shape.num_attention_heads != shape.num_key_value_heads
    is_float32 = workload.dtype_bytes == FLOAT32_BYTES
    return is_float32 and has_grouped_queries and not shape.can_be_packed


def uses_fused_blocks(workload: Workload) -> bool:
    """Whether packed sequences run through fused kernels, which save only their inputs."""
    return workload.has_triton and workload.shape.can_be_fused


def _norm(workload: Workload, width: int, count: int) -> int:
    """``count`` norms of ``width``: input, and output before the weight where that is trained."""
    output = 0 if workload.has_lora else workload.dtype_bytes
    if output and workload.shape.architecture.has_float32_norms:
        output = FLOAT32_BYTES
    return count * (width * (FLOAT32_BYTES + output) + FLOAT32_BYTES)


def _norms(workload: Workload) -> int:
    shape, item = workload.shape, workload.dtype_bytes
    # Inputs of the attention and MLP projections; an adapter saves its own copy.
    inputs = 0 if workload.has_lora else 2 * item * shape.hidden_size
    heads = shape.num_attention_heads + shape.num_key_value_heads
    if not shape.architecture.has_qk_norm:
        heads = 0
    if uses_fused_blocks(workload):
        return item * (2 * shape.hidden_size + heads * shape.head_dim) + inputs
    hidden = 2 * _norm(workload, shape.hidden_size, 1)
    return hidden + _norm(workload, shape.head_dim, heads) + inputs


def _attention(workload: Workload, batch: MicroBatch) -> int:
    """Queries, keys, values and output, and the LSE of each head or the attention matrix."""
    shape = workload.shape
    if materializes_attention(workload):
        tensors = FLOAT32_BYTES * 4 * batch.tokens * shape.query_width
        return tensors + _attention_matrix(workload, batch)
    numbers = 2 * batch.tokens * (shape.query_width + shape.key_width)
    lse = FLOAT32_BYTES * shape.num_attention_heads * batch.tokens
    return workload.dtype_bytes * numbers + lse


def _mlp(workload: Workload) -> int:
    """Gate and up projection; the gate's activation unless fused, the product unless LoRA."""
    tensors = 2 + (not uses_fused_blocks(workload)) + (not workload.has_lora)
    return tensors * workload.dtype_bytes * workload.shape.intermediate_size


def _lora(workload: Workload) -> int:
    """Inputs of adapters: fused, once per distinct input; else a float32 copy per adapter.

    An input that is float32 already is not copied, unless dropout is applied.
    """
    lora = workload.config.lora
    if not workload.has_lora:
        return 0
    linears = workload.shape.lora_linears(lora.targets)
    is_fused = uses_fused_blocks(workload) and not lora.dropout
    item = workload.dtype_bytes if is_fused else FLOAT32_BYTES
    inner = item * lora.r * len(linears)
    dropout_masks = sum(linear.inputs for linear in linears) if lora.dropout else 0
    if workload.dtype_bytes < item or lora.dropout:
        return inner + dropout_masks + FLOAT32_BYTES * sum(linear.inputs for linear in linears)
    # Attention saves its own output.
    inputs = {linear.source: linear.inputs for linear in linears if linear.source != "attended"}
    return inner + item * sum(inputs.values())
