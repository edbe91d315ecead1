"""Memory of an update: log-probs of the reference, passes with gradients, the optimizer's step."""

from grpo_cl.footprint import activations as acts
from grpo_cl.footprint.activations import FLOAT
from grpo_cl.footprint.cache import copied_bytes, has_graphs, kept_bytes
from grpo_cl.footprint.overheads import (
    GRAPH_WORKSPACE,
    LOGIT_BACKWARD,
    LOGIT_FORWARD,
    MAX_LOGITS,
    WORKSPACE,
)
from grpo_cl.footprint.phase import Phase, fullest
from grpo_cl.footprint.plan import Pass, Plan

SCORE, UPDATE = "score", "update"


def resident(plan: Plan, name: str) -> Phase:
    """What stays from the first update to the last."""
    shape, item, trained = plan.shape, plan.item, plan.trained // plan.shards
    base = item * shape.parameters
    adapters = FLOAT * plan.trained if plan.has_adapters else 0
    has_copies = item < FLOAT and not plan.has_adapters
    has_second = plan.config.kl_coef > 0 and not plan.has_adapters
    parts = {
        "weights": (base + adapters) // plan.shards,
        "float32 weights": FLOAT * trained if has_copies else 0,
        "moments": 2 * FLOAT * trained,
        "reference": base if has_second else 0,  # made before the policy is cut into shards
        "sampler": kept_bytes(plan) + copied_bytes(plan),
        "workspace": WORKSPACE + (GRAPH_WORKSPACE if has_graphs(plan) else 0),
    }
    return Phase(name, parts)


def score_phase(plan: Plan) -> Phase | None:
    """Log-probs of the reference, without gradients; None if there is none."""
    if not plan.config.kl_coef:
        return None
    start = _gathered(resident(plan, SCORE), plan)
    work = plan.widest_pass
    layer = work.tokens * _forward_of_layer(plan)
    hidden = plan.item * plan.shape.hidden_size * (work.tokens + _scored(plan, work))
    logits = (plan.item if plan.has_kernels else LOGIT_FORWARD) * _logits(plan, work)
    return fullest(
        [
            start.with_parts(activations=layer),
            start.with_parts(activations=acts.forward_of_attention(plan, work)),
            start.with_parts(activations=hidden, logits=logits),
        ]
    )


def update_phase(plan: Plan) -> Phase:
    """Passes forward and back, or the step after them, whichever needs more."""
    start = resident(plan, UPDATE)
    gradients = FLOAT * plan.trained // plan.shards
    step = start.with_parts(gradients=gradients)
    passing = _gathered(start, plan)
    early = passing.with_parts(gradients=gradients if len(plan.passes) > 1 else 0)
    others = gradients - gradients // plan.shape.num_hidden_layers
    late = passing.with_parts(gradients=others, activations=_first_layer(plan))
    return fullest([step, late, *_head(early, plan), *_last_layer(early, plan)])


def kept_activations(plan: Plan, work: Pass) -> int:
    """What a pass keeps for its way back, when it has come to the head."""
    layer = acts.saved_by_layer(plan, work)
    if plan.config.gradient_checkpointing:
        layer = work.tokens * plan.item * plan.shape.hidden_size
    return plan.shape.num_hidden_layers * layer + work.tokens * acts.saved_outside(plan)


def _head(start: Phase, plan: Plan) -> list[Phase]:
    """The way back to the logits of a chunk, and from them to the head's matrix."""
    work, item, scored = plan.widest_pass, plan.item, _scored(plan, plan.widest_pass)
    logits, table = _logits(plan, work), _table(plan)
    is_chunked = logits < plan.shape.vocab_size * scored
    kept = kept_activations(plan, work) + item * plan.shape.hidden_size * scored
    before = start.with_parts(activations=kept, gradients=table if is_chunked else 0)
    if not plan.has_kernels:
        return [before.with_parts(logits=LOGIT_BACKWARD * logits, gradients=table)]
    # The logits and their gradient, both in the model's precision, and then only that.
    both, one = before.with_parts(logits=2 * item * logits), before.with_parts(logits=item * logits)
    return [both, one.with_parts(gradients=table)]


def _last_layer(start: Phase, plan: Plan) -> list[Phase]:
    """The norm after it, its MLP and its attention, all on the way back."""
    work, item, width = plan.widest_pass, plan.item, plan.shape.hidden_size
    kept = kept_activations(plan, work)
    held = _table(plan) if plan.shape.tie_word_embeddings else 0  # until the embedding adds its own
    inside = kept - work.tokens * acts.saved_outside(plan)
    if plan.config.gradient_checkpointing:
        inside += acts.saved_by_layer(plan, work)
    norm = work.tokens * (item * width + acts.backward_of_norm(plan))
    return [
        start.with_parts(activations=kept + norm, gradients=held),
        start.with_parts(
            activations=inside + work.tokens * acts.backward_of_layer(plan), gradients=held
        ),
        start.with_parts(
            activations=inside + acts.backward_of_attention(plan, work), gradients=held
        ),
    ]


def _first_layer(plan: Plan) -> int:
    """What the way back through it holds, when the gradients of all others are there."""
    work = plan.widest_pass
    return acts.saved_by_layer(plan, work) + work.tokens * acts.backward_of_layer(plan)


def _table(plan: Plan) -> int:
    """The gradient of the head's matrix."""
    return 0 if plan.has_adapters else plan.item * plan.shape.vocab_size * plan.shape.hidden_size


def _forward_of_layer(plan: Plan) -> int:
    if acts.is_fused(plan):
        return acts.forward_of_fused(plan)
    return acts.forward_of_layer(plan, has_adapters=False)


def _scored(plan: Plan, work: Pass) -> int:
    """Positions whose logits are wanted."""
    return work.rows * plan.reply_tokens


def _logits(plan: Plan, work: Pass) -> int:
    """Logits of the largest chunk."""
    vocabulary = plan.shape.vocab_size
    return vocabulary * min(_scored(plan, work), max(1, MAX_LOGITS // vocabulary))


def _gathered(start: Phase, plan: Plan) -> Phase:
    """With what a sharded policy holds whole: what is in no layer, and two layers at a time."""
    if not plan.is_sharded:
        return start
    shape = plan.shape
    whole = shape.outer_parameters + 2 * shape.layer_parameters
    largest = max(shape.outer_parameters, shape.layer_parameters)
    # Gradients of a part are whole, and once more in float32 to be summed.
    summed = 0 if plan.has_adapters else (plan.item + FLOAT) * largest
    return start.with_parts(weights=plan.item * whole, gradients=summed)
