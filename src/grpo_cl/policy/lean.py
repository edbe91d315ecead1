"""One decoding step of a model of Llama's shape, with few and fused kernels.

A module's own step is more than forty kernels a layer, most of them of a few numbers per row. This
one has the module's linear layers, whatever adapters they have, and does the rest with ``fused``.
Shapes: B rows, or tokens of them, E hidden size, F inner size, H query heads, J key heads, D width,
V vocabulary, T tokens of a row.
"""

import logging
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

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
"""Tokens of a row that a step is tried on."""


class _Pass(NamedTuple):
    """What all layers of a step are given."""

    cache: SlotCache
    span: Span
    turns_BD: tuple[Tensor, Tensor]
    used: Used | None
    seen: tuple[Tensor, ...]
    """How much each row sees of each trunk."""
    tiles: Any
    """Which tokens look together, as ``fused_looks.Tiles``; None where each looks for itself."""


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
        self._fused, self._looks = kernels_of("fused"), kernels_of("fused_looks")
        settings = causal.config.get_text_config()
        group = settings.num_attention_heads // settings.num_key_value_heads
        self.tile_size: int = self._looks.tile_size(group)
        is_small = sum(weight.nbytes for weight in causal.parameters()) <= WORTHWHILE
        self._layers = [
            _Layer(*(Projections(alike, is_joined=is_small) for alike in _readers(layer)))
            for layer in self._base.layers
        ]
        self._copied: list[Tensor] = []
        self._stamp = 0
        self.renew(anew=True)

    def renew(self, *, anew: bool = False) -> None:
        """Follow the model's weights, if they have changed; ``anew`` where others may be in use."""
        if not anew and self._stamp == _stamp(self._copied):
            return
        projections = [one for layer in self._layers for one in layer]
        for one in projections:
            one.renew()
        self._copied = [weight for one in projections for weight in one.copied]
        self._stamp = _stamp(self._copied)

    def __call__(self, cache: SlotCache, span: Span, tokens_B: Tensor, used: Used | None) -> Tensor:
        """Logits_BV after ``tokens_B``, whose keys and values go where ``span`` says."""
        return self._head(self.read(cache, span, tokens_B, used))

    def read(
        self,
        cache: SlotCache,
        span: Span,
        tokens_B: Tensor,
        used: Used | None,
        tiles_2M: Tensor | None = None,
    ) -> Tensor:
        """Hidden states after tokens, of which a row may have several.

        The tokens of a tile, from its first one on as many as it has, look at their row together.
        """
        base = self._base
        total_BE: Tensor = base.embed_tokens(tokens_B)
        added_BE: Tensor | None = None
        given = self._pass(cache, span, total_BE, used, tiles_2M)
        for number in range(len(self._layers)):
            total_BE, added_BE = self._pass_layer(number, total_BE, added_BE, given)
        return self._norm(base.norm, total_BE, added_BE)[1]

    def pass_over(
        self,
        reader: SlotReader,
        chunks: Sequence[Chunk],
        hidden_NE: Tensor,
        tiles_2M: Tensor | None,
    ) -> _Pass:
        """What layers are given that read hidden states in the place of the chunks' tokens."""
        spans = [reader.span_of(chunk) for chunk in chunks]
        span = spans[0]._replace(
            rows_N=torch.cat([one.rows_N for one in spans]),
            positions_N=torch.cat([one.positions_N for one in spans]),
            length=max(one.length for one in spans),
        )
        used = reader.used([chunk.place for chunk in chunks for _ in chunk.ids])
        return self._pass(reader.cache, span, hidden_NE, used, tiles_2M)

    def pass_layer(self, number: int, hidden_NE: Tensor, given: _Pass) -> Tensor:
        """What one layer makes of hidden states."""
        total_NE, added_NE = self._pass_layer(number, hidden_NE, None, given)
        return total_NE + added_NE

    def _pass(
        self,
        cache: SlotCache,
        span: Span,
        hidden_BE: Tensor,
        used: Used | None,
        tiles_2M: Tensor | None,
    ) -> _Pass:
        positions_B = span.positions_N if used is None else span.positions_N + used.lengths_B
        rotated = self._base.rotary_emb(hidden_BE, positions_B[:, None])
        cosines_BD, sines_BD = (one[:, 0].contiguous() for one in rotated)
        seen = tuple(used.seen(place.trunk) for place in used.places) if used else ()
        tiles = None
        if tiles_2M is not None:
            tiles = self._looks.Tiles(*tiles_2M, self.tile_size)
        return _Pass(cache, span, (cosines_BD, sines_BD), used, seen, tiles)

    def _pass_layer(
        self, number: int, total_BE: Tensor, added_BE: Tensor | None, given: _Pass
    ) -> tuple[Tensor, Tensor]:
        """The hidden states before the last addition, and what is yet to be added."""
        layer, linear = self._base.layers[number], self._layers[number]
        total_BE, hidden_BE = self._norm(layer.input_layernorm, total_BE, added_BE)
        seen_BE = self._attend(layer.self_attn, linear.states(hidden_BE), given)
        (added_BE,) = linear.output(seen_BE)
        total_BE, hidden_BE = self._norm(layer.post_attention_layernorm, total_BE, added_BE)
        (added_BE,) = linear.down(self._fused.gated(*linear.gates(hidden_BE)))
        return total_BE, added_BE

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
        lengths = span.length, tuple(place.length for place in places)
        looks = self._looks.Looks(turned_BHD, key_BJD.shape[1], *lengths, given.tiles)
        looks.at_rows(cache, where)
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
    """Whether each layer gives what the model's own gives, in a row after a trunk and in one alone.

    Layer by layer, since what two ways round differently grows from each to the next.
    """
    reader = SlotReader(causal, context=2 * PAGE, slots=1, device=device, piece=PAGE)
    base: Any = causal.base_model
    weight: Tensor = base.embed_tokens.weight
    ids = [number % weight.shape[0] for number in range(2 * PAGE)]
    before, tried = ids[:-TRIED], ids[-TRIED:]
    rows = [Chunk(0, 0, before[PAGE:], Place(0, PAGE)), Chunk(1, 0, before)]
    ends = [chunk._replace(start=len(chunk.ids), ids=tried) for chunk in rows]
    # Small beside what a layer adds to it, which does not depend on its size.
    hidden = 0.05 * torch.arange(len(rows) * TRIED * weight.shape[1], device=device).sin()
    hidden_BTE = hidden.view(len(rows), TRIED, -1).to(weight.dtype)
    tiles = tiles_of([chunk.row for chunk in ends for _ in tried], step.tile_size)
    tried_2M = torch.tensor(tiles, device=device).t().contiguous()
    hidden_NE = hidden_BTE.flatten(0, 1)
    with reader.sampling():
        reader.plant(0, before[:PAGE])
        for chunk in rows:
            reader.read([chunk])
        ways = [step.pass_over(reader, ends, hidden_NE, tiles_2M) for tiles_2M in (None, tried_2M)]
        for number, layer in enumerate(base.layers):
            pairs = zip(ends, hidden_BTE.split(1), strict=True)
            expected = [reader.pass_layer(layer, *pair) for pair in pairs]
            expected_NE = torch.cat(expected).flatten(0, 1)
            found = [step.pass_layer(number, hidden_NE, given) for given in ways]
            if not all(are_alike(found_NE, expected_NE) for found_NE in found):
                return False
    return True


def tiles_of(rows: Sequence[int], size: int) -> list[tuple[int, int]]:
    """The first token and the number of each tile, of tokens whose rows are given in order."""
    found: list[tuple[int, int]] = []
    start = 0
    for _, run in groupby(rows):
        end = start + len(list(run))
        found += [(first, min(size, end - first)) for first in range(start, end, size)]
        start = end
    return found


def _stamp(weights: Sequence[Tensor]) -> int:
    """Another whenever one of them was written to, or moved."""
    return sum(weight._version + weight.data_ptr() for weight in weights)


def _width(causal: PreTrainedModel) -> int:
    base: Any = causal.base_model
    return base.layers[0].self_attn.head_dim
