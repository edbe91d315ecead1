"""Bytes that a pass keeps for its way back, and needs besides while it is under way.

Per token of one layer unless a pass is given. The operations are those of transformers' models,
one tensor each, or the kernels of ``policy.layers``, of several at once; docs/memory-use.md lists
them. Letters there: D the hidden size, H and J the widths of queries and keys, I the intermediate
size, e bytes of a number.
"""

from grpo_cl.footprint.plan import Pass, Plan

FLOAT = 4
"""Bytes of a number in float32, in which norms, adapters and the loss are computed."""
NORM_BACKWARD = 18
"""Bytes per hidden number that the backward pass of a norm adds: gradients and products."""


def saved_by_layer(plan: Plan, work: Pass) -> int:
    """What autograd keeps of one layer in a pass."""
    each = _norms(plan) + _mlp(plan) + _adapters(plan)
    return work.tokens * each + _attention(plan, work)


def saved_outside(plan: Plan) -> int:
    """What it keeps of the last norm, which is never fused, and the token's number."""
    return _norm(plan, plan.shape.hidden_size, 1) + 8


def backward_of_layer(plan: Plan) -> int:
    """What the way back through one layer adds to what is kept: gradients inside the MLP."""
    # Fused, what the product of gate and branch was kept for is gone when the gate goes back.
    item = FLOAT if plan.has_adapters and not is_fused(plan) else plan.item
    return 2 * item * plan.shape.intermediate_size + plan.item * plan.shape.hidden_size


def backward_of_norm(plan: Plan) -> int:
    """What the way back through the last norm adds, when everything is still kept."""
    return NORM_BACKWARD * plan.shape.hidden_size


def forward_of_layer(plan: Plan, *, has_adapters: bool) -> int:
    """What one layer holds at most when nothing is kept."""
    shape = plan.shape
    # An adapter's output, its scaled copy and the sum are float32, beside the gate.
    inner = plan.item + 3 * FLOAT if has_adapters else 3 * plan.item
    return inner * shape.intermediate_size + 3 * plan.item * shape.hidden_size


def forward_of_fused(plan: Plan) -> int:
    """The same of a layer that reads a packed row with fused kernels."""
    return plan.item * (3 * plan.shape.intermediate_size + 5 * plan.shape.hidden_size)


def forward_of_rooted(plan: Plan) -> int:
    """What attention of rows that go on from a trunk holds when nothing is kept.

    Queries, their copy in rows, what was seen in the row and in the trunk, both put one after the
    other, weighed in float32, and their sum.
    """
    shape = plan.shape
    looks = (7 * plan.item + 3 * FLOAT) * shape.query_width
    return looks + 2 * plan.item * (shape.hidden_size + shape.key_width)


def backward_of_attention(plan: Plan, work: Pass) -> int:
    """What the way back through attention adds in a layer whose MLP is done already.

    Gradients of keys and values are made for every query head, those of queries in float32 besides.
    """
    shape = plan.shape
    gradients = plan.item * (3 * shape.query_width + 2 * shape.key_width)
    each = gradients + FLOAT * shape.query_width - _mlp(plan)
    return work.tokens * each + 2 * _weights(plan, work)


def forward_of_attention(plan: Plan, work: Pass) -> int:
    """What attention holds at most in one layer when nothing is kept."""
    shape = plan.shape
    each = plan.item * (shape.hidden_size + 2 * (shape.query_width + shape.key_width))
    if plan.is_family and shape.can_be_packed:
        # A second look; without a kernel that joins it in place, both outputs in float32.
        is_joined = plan.has_kernels and plan.item < FLOAT
        each += (plan.item + (0 if is_joined else 2 * FLOAT)) * shape.query_width
    return work.tokens * each + 3 * _weights(plan, work)


def _weights(plan: Plan, work: Pass) -> int:
    """Attention weights of a pass, where the kernel makes them all at once."""
    if not is_plain(plan):
        return 0
    return FLOAT * plan.shape.num_attention_heads * work.tokens * plan.length


def is_plain(plan: Plan) -> bool:
    """Whether attention on a GPU makes and keeps all its weights.

    Where rows are not packed PyTorch chooses the kernel: flash attention has no float32, and the
    one that has it takes no shared key heads.
    """
    shape = plan.shape
    has_shared_heads = shape.num_attention_heads != shape.num_key_value_heads
    return plan.item == FLOAT and has_shared_heads and not shape.can_be_packed


def is_fused(plan: Plan) -> bool:
    """Whether layers read packed rows with fused kernels, which keep what they read and no more."""
    return plan.has_kernels and plan.shape.can_be_fused


def _norm(plan: Plan, width: int, count: int) -> int:
    """A norm over ``count`` parts of ``width`` numbers: its input, its output before the weight."""
    learned = 0 if plan.has_adapters else plan.item
    if learned and plan.shape.family.has_float_norms:
        learned = FLOAT
    return count * (width * (FLOAT + learned) + FLOAT)


def _norms(plan: Plan) -> int:
    shape = plan.shape
    # What queries, keys, values and the MLP read; an adapter keeps its own copy.
    read = 0 if plan.has_adapters else 2 * plan.item * shape.hidden_size
    heads = shape.num_attention_heads + shape.num_key_value_heads
    if not shape.family.has_head_norms:
        heads = 0
    if is_fused(plan):
        return plan.item * (2 * shape.hidden_size + heads * shape.head_dim) + read
    return 2 * _norm(plan, shape.hidden_size, 1) + _norm(plan, shape.head_dim, heads) + read


def _attention(plan: Plan, work: Pass) -> int:
    """Queries, keys, values, output, and a normaliser of each head, or all weights."""
    shape = plan.shape
    if is_plain(plan):
        return FLOAT * 4 * work.tokens * shape.query_width + _weights(plan, work)
    numbers = 2 * work.tokens * (shape.query_width + shape.key_width)
    return plan.item * numbers + FLOAT * shape.num_attention_heads * work.tokens


def _mlp(plan: Plan) -> int:
    """Gate and the other branch; the gate's activation where it is computed by itself.

    And their product where a matrix learns from it.
    """
    tensors = 2 + (not is_fused(plan)) + (not plan.has_adapters)
    return tensors * plan.item * plan.shape.intermediate_size


def _adapters(plan: Plan) -> int:
    """Inputs of adapters: fused once for all that read the same, else in float32 and a copy each.

    No copy is made of what has that precision already, unless some of it is dropped.
    """
    lora, shape = plan.config.lora, plan.shape
    if not plan.has_adapters:
        return 0
    adapted = shape.adapted(lora.targets)
    item = plan.item if is_fused(plan) and not lora.dropout else FLOAT
    inner = item * lora.r * len(adapted)
    dropped = sum(linear.inputs for linear in adapted) if lora.dropout else 0
    if plan.item < item or lora.dropout:
        return inner + dropped + FLOAT * sum(linear.inputs for linear in adapted)
    # What attention returns is kept by attention already.
    sources = {linear.source: linear.inputs for linear in adapted if linear.source != "attended"}
    return inner + item * sum(sources.values())
