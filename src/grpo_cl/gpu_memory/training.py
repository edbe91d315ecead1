"""Memory of an update: reference log-probs, forward and backward passes, optimizer step."""

from grpo_cl.gpu_memory import activations as acts
from grpo_cl.gpu_memory.constants import LOGIT_BACKWARD_BYTES, LOGIT_FORWARD_BYTES, MAX_LOGITS
from grpo_cl.gpu_memory.phase import Phase, highest_peak, resident_phase
from grpo_cl.gpu_memory.workload import FLOAT32_BYTES, MicroBatch, Workload

SCORE, UPDATE = "score", "update"


def score_phase(workload: Workload) -> Phase | None:
    """Reference log-probs, computed without gradients; None without a reference."""
    if not workload.config.kl_coef:
        return None
    start = _with_unsharded_weights(resident_phase(workload, SCORE), workload)
    batch, item = workload.largest_micro_batch, workload.dtype_bytes
    layer = batch.tokens * _layer_forward_bytes(workload)
    hidden = item * workload.shape.hidden_size * (batch.tokens + _scored_tokens(workload, batch))
    per_logit = item if workload.has_triton else LOGIT_FORWARD_BYTES
    return highest_peak(
        [
            start.with_parts(activations=layer),
            start.with_parts(activations=acts.attention_forward_bytes(workload, batch)),
            start.with_parts(activations=hidden, logits=per_logit * _chunk_logits(workload, batch)),
        ]
    )


def update_phase(workload: Workload) -> Phase:
    """Forward and backward passes, or the optimizer step, whichever has the highest peak."""
    start = resident_phase(workload, UPDATE)
    gradients = FLOAT32_BYTES * workload.trainable_parameters // workload.shards
    step = start.with_parts(gradients=gradients)
    passes = _with_unsharded_weights(start, workload)
    has_several = len(workload.micro_batches) > 1
    early = passes.with_parts(gradients=gradients if has_several else 0)
    all_but_first = gradients - gradients // workload.shape.num_hidden_layers
    late = passes.with_parts(gradients=all_but_first, activations=_first_layer(workload))
    return highest_peak([step, late, *_head(early, workload), *_last_layer(early, workload)])


def saved_activations(workload: Workload, batch: MicroBatch) -> int:
    """What a forward pass has saved for the backward pass when it reaches the head."""
    layer = acts.layer_saved_bytes(workload, batch)
    if workload.config.gradient_checkpointing:
        layer = batch.tokens * workload.dtype_bytes * workload.shape.hidden_size
    final_norm = batch.tokens * acts.final_norm_saved_bytes(workload)
    return workload.shape.num_hidden_layers * layer + final_norm


def _head(start: Phase, workload: Workload) -> list[Phase]:
    """Backward pass to the logits of a chunk, and from them to the head's weight."""
    batch, item = workload.largest_micro_batch, workload.dtype_bytes
    scored = _scored_tokens(workload, batch)
    logits, head_gradient = _chunk_logits(workload, batch), _head_gradient(workload)
    has_several_chunks = logits < workload.shape.vocab_size * scored
    saved = saved_activations(workload, batch) + item * workload.shape.hidden_size * scored
    before = start.with_parts(
        activations=saved, gradients=head_gradient if has_several_chunks else 0
    )
    if not workload.has_triton:
        backward = LOGIT_BACKWARD_BYTES * logits
        return [before.with_parts(logits=backward, gradients=head_gradient)]
    # First the logits and their gradient, both in the model's dtype, then the gradient alone.
    return [
        before.with_parts(logits=2 * item * logits),
        before.with_parts(logits=item * logits, gradients=head_gradient),
    ]


def _last_layer(start: Phase, workload: Workload) -> list[Phase]:
    """Backward pass of the final norm, and of the last layer's MLP and attention."""
    batch, item = workload.largest_micro_batch, workload.dtype_bytes
    width = workload.shape.hidden_size
    saved = saved_activations(workload, batch)
    # A tied head keeps its gradient until the embedding adds its own.
    head_gradient = _head_gradient(workload) if workload.shape.tie_word_embeddings else 0
    layers = saved - batch.tokens * acts.final_norm_saved_bytes(workload)
    if workload.config.gradient_checkpointing:
        layers += acts.layer_saved_bytes(workload, batch)
    norm = batch.tokens * (item * width + acts.norm_backward_bytes(workload))
    mlp = batch.tokens * acts.mlp_backward_bytes(workload)
    attention = acts.attention_backward_bytes(workload, batch)
    peaks = (saved + norm, layers + mlp, layers + attention)
    return [start.with_parts(activations=peak, gradients=head_gradient) for peak in peaks]


def _first_layer(workload: Workload) -> int:
    """Backward pass of the first layer, when the gradients of all others are allocated."""
    batch = workload.largest_micro_batch
    mlp = batch.tokens * acts.mlp_backward_bytes(workload)
    return acts.layer_saved_bytes(workload, batch) + mlp


def _head_gradient(workload: Workload) -> int:
    """The gradient of the head's weight."""
    if workload.has_lora:
        return 0
    return workload.dtype_bytes * workload.shape.vocab_size * workload.shape.hidden_size


def _layer_forward_bytes(workload: Workload) -> int:
    if acts.uses_fused_blocks(workload):
        return acts.fused_layer_forward_bytes(workload)
    return acts.layer_forward_bytes(workload, has_lora=False)


def _scored_tokens(workload: Workload, batch: MicroBatch) -> int:
    """Tokens whose log-probs are computed."""
    return batch.rows * workload.reply_tokens


def _chunk_logits(workload: Workload, batch: MicroBatch) -> int:
    """Logits of the largest chunk."""
    vocabulary = workload.shape.vocab_size
    return vocabulary * min(_scored_tokens(workload, batch), max(1, MAX_LOGITS // vocabulary))


def _with_unsharded_weights(start: Phase, workload: Workload) -> Phase:
    """Adds what FSDP gathers: the weights outside of layers, and two layers at a time."""
    if not workload.is_sharded:
        return start
    shape = workload.shape
    gathered = shape.non_layer_parameters + 2 * shape.layer_parameters
    largest = max(shape.non_layer_parameters, shape.layer_parameters)
    # Gradients of a unit are unsharded, and once more in float32 for the reduction.
    reduced = 0 if workload.has_lora else (workload.dtype_bytes + FLOAT32_BYTES) * largest
    return start.with_parts(weights=workload.dtype_bytes * gathered, gradients=reduced)
