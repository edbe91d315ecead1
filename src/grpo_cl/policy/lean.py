"""One decoding step of a model of Llama's shape, with few and fused kernels.

A module's own step is more than forty kernels a layer, most of them of a few numbers per row. This
one has the module's linear layers, whatever adapters they have, and does the rest with ``fused``.
Shapes: B rows, or tokens of them, E hidden size, F inner size, H query heads, J key heads, D width,
V vocabulary, T tokens of a row.
"""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grpo_cl.policy.attention import are_alike
from grpo_cl.policy.layers import can_be_fused
from grpo_cl.policy.projections import WORTHWHILE, Projections
from grpo_cl.policy.reader import Chunk, SlotReader
from grpo_cl.policy.scoring import Head, sees_all
from grpo_cl.policy.slots import SlotCache, Span
from grpo_cl.policy.triton_here import kernels_of
from grpo_cl.policy.trunks import PAGE, Place, Used

_LOG = logging.getLogger(__name__)

WIDTHS = frozenset({16, 32, 64, 128, 256})
"""What a head may be wide."""
TRIED = 3
"""Tokens of a row that are read again to try a step."""


class _Pass(NamedTuple):
    """What all layers of a step are given."""

    cache: SlotCache
    span: Span
    turns_BD: tuple[Tensor, Tensor]
    used: Used | None
    seen: tuple[Tensor, ...]
    """How much each row sees of each trunk."""


class _Layer(NamedTuple):
    """The linear layers of one layer."""

    states: Projections
    output: Projections
    gates: Projections
    down: Projections


class LeanStep:
    """The next token's logits for the first rows of a cache."""

    def __init__(self, causal: PreTrainedModel) -> None:
        self._base: Any = causal.base_model
        self._head = Head(causal)
        self._width = _width(causal)
        self._fused = kernels_of("fused")
        is_small = sum(weight.nbytes for weight in causal.parameters()) <= WORTHWHILE
        self._layers = [
            _Layer(*(Projections(group, is_joined=is_small) for group in _readers(layer)))
            for layer in self._base.layers
        ]
        self._stamp = 0
        self.renew()

    def renew(self) -> None:
        """Follow the model's weights, if they have changed."""
        projections = [one for layer in self._layers for one in layer]
        stamp = sum(one.stamp for one in projections)
        if stamp != self._stamp:
            self._stamp = stamp
            for one in projections:
                one.renew()

    def __call__(self, cache: SlotCache, span: Span, tokens_B: Tensor, used: Used | None) -> Tensor:
        """Logits_BV after ``tokens_B``, whose keys and values go where ``span`` says."""
        return self._head(self.read(cache, span, tokens_B, used))

    def read(self, cache: SlotCache, span: Span, tokens_B: Tensor, used: Used | None) -> Tensor:
        """Hidden states after tokens, of which a row may have several: each looks for itself."""
        base = self._base
        total_BE: Tensor = base.embed_tokens(tokens_B)
        added_BE: Tensor | None = None
        positions_B = span.positions_N if used is None else span.positions_N + used.lengths_B
        turns = [one[:, 0].contiguous() for one in base.rotary_emb(total_BE, positions_B[:, None])]
        seen = tuple(used.seen(place.trunk) for place in used.places) if used else ()
        given = _Pass(cache, span, cast(tuple[Tensor, Tensor], tuple(turns)), used, seen)
        for layer, linear in zip(base.layers, self._layers, strict=True):
            total_BE, hidden_BE = self._norm(layer.input_layernorm, total_BE, added_BE)
            seen_BE = self._attend(layer.self_attn, linear.states(hidden_BE), given)
            (added_BE,) = linear.output(seen_BE)
            total_BE, hidden_BE = self._norm(layer.post_attention_layernorm, total_BE, added_BE)
            (added_BE,) = linear.down(self._fused.gated(*linear.gates(hidden_BE)))
        return self._norm(base.norm, total_BE, added_BE)[1]

    def _norm(self, norm: Any, total: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
        return self._fused.add_norm(total, added, norm.weight, norm.variance_epsilon)

    def _attend(self, layer: Any, states: Sequence[Tensor], given: _Pass) -> Tensor:
        query_BHD, key_BJD, value_BJD = (one.unflatten(1, (-1, self._width)) for one in states)
        if layer.config.model_type == "qwen3":
            query_BHD = self._norm_heads(layer.q_norm, query_BHD)
            key_BJD = self._norm_heads(layer.k_norm, key_BJD)
        span, cache = given.span, given.cache.layer(layer.layer_idx)
        where = span.rows_N, span.positions_N
        read = query_BHD, key_BJD, value_BJD
        turned_BHD = self._fused.rotate_and_store(read, given.turns_BD, cache, where)
        places = given.used.places if given.used else ()
        count = self._fused.parts_of(
            key_BJD.shape[:2].numel(), span.length, tuple(place.length for place in places)
        )
        looks = self._fused.Looks(turned_BHD, count)
        looks.at_rows(cache, where, span.length)
        for (trunk, length), seen_B in zip(places, given.seen, strict=True):
            assert given.used is not None
            looks.at_trunk(given.used.cache.row(layer.layer_idx, trunk, length), seen_B)
        return looks.joined().flatten(1)

    def _norm_heads(self, norm: Any, states_BHD: Tensor) -> Tensor:
        flat = states_BHD.flatten(0, 1)
        return self._norm(norm, flat, None)[1].view_as(states_BHD)


def _readers(layer: Any) -> tuple[list[nn.Module], ...]:
    """The linear layers of a layer, those together that read the same; in the order of _Layer."""
    attention, gates = layer.self_attn, layer.mlp
    return (
        [attention.q_proj, attention.k_proj, attention.v_proj],
        [attention.o_proj],
        [gates.gate_proj, gates.up_proj],
        [gates.down_proj],
    )


def lean_step(causal: PreTrainedModel, device: torch.device) -> LeanStep | None:
    """A step for the model, if it is of the shape and gives the model's own logits."""
    if not can_be_fused(causal) or not sees_all(causal.config) or _width(causal) not in WIDTHS:
        return None
    step = LeanStep(causal)
    if is_exact(step, causal, device):
        return step
    _LOG.warning(
        "Fused steps of this %s differ from its own by more than rounding, so its own are taken, "
        "and decoding is slower.",
        causal.config.model_type,
    )
    return None


def is_exact(step: LeanStep, causal: PreTrainedModel, device: torch.device) -> bool:
    """Whether the step agrees with the model, on a row after a trunk and on one without.

    It reads the last tokens before it by itself.
    """
    reader = SlotReader(causal, context=2 * PAGE, slots=1, device=device, piece=PAGE)
    vocabulary = causal.config.get_text_config().vocab_size
    *before, last = [number % vocabulary for number in range(2 * PAGE - 1)]
    rows = [Chunk(0, 0, before[PAGE:], Place(0, PAGE)), Chunk(1, 0, before)]
    tokens_B = torch.full((len(rows),), last, device=device)
    with reader.sampling():
        reader.plant(0, before[:PAGE])
        for chunk in rows:
            reader.read([chunk])
        ends = [chunk._replace(start=len(chunk.ids), ids=[last]) for chunk in rows]
        expected_BV = reader.read(ends)
        span, places = reader.cache.span, [chunk.place for chunk in rows]
        back_T = torch.arange(TRIED, 0, -1, device=device)
        several = span._replace(
            rows_N=span.rows_N.repeat_interleave(TRIED),
            positions_N=(span.positions_N[:, None] - back_T).flatten(),
        )
        ids_N = torch.tensor([chunk.ids[-TRIED:] for chunk in rows], device=device).flatten()
        seen = reader.used([place for place in places for _ in range(TRIED)])
        step.read(reader.cache, several, ids_N, seen)
        found_BV = step(reader.cache, span, tokens_B, reader.used(places))
    return are_alike(found_BV, expected_BV)


def _width(causal: PreTrainedModel) -> int:
    base: Any = causal.base_model
    return base.layers[0].self_attn.head_dim
