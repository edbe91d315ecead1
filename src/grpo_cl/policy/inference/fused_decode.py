"""Decoding step of a Llama-architecture model with few, fused kernels.

A step of the transformers module takes more than forty kernels per layer, most of them on a few
numbers per row. This one uses the model's linear layers, with their adapters, and fused Triton
kernels for the rest. It also prefills short chunks. Shapes: B rows, or tokens of them, E hidden
size, H query heads, J key heads, D head dimension, V vocabulary, T tokens of a row, N tokens of all
rows, M query tiles.
"""

import logging
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grpo_cl.gpu_memory.constants import MAX_MERGED_BYTES, PAGE_SIZE
from grpo_cl.policy.inference.merged_linears import MergedLinears
from grpo_cl.policy.inference.model_runner import Chunk, ModelRunner
from grpo_cl.policy.inference.shared_tiles import shared_columns, shared_tiles
from grpo_cl.policy.kernels.attention_dispatch import allclose_relative
from grpo_cl.policy.kernels.kv_cache import KVCache, SharedTiles, SlotPrefix, WritePlan
from grpo_cl.policy.kernels.llama_block import (
    BlockLinears,
    add_norm,
    block_forward,
    block_linears,
    split_heads,
    supports_fused_blocks,
)
from grpo_cl.policy.kernels.prefix_view import PrefixRef, PrefixView
from grpo_cl.policy.kernels.triton_support import load_kernels
from grpo_cl.policy.model.logprobs import LMHead, plain_causal_length

_LOG = logging.getLogger(__name__)

HEAD_DIMS = frozenset({16, 32, 64, 128, 256})
"""Supported head dimensions."""
PROBE_TOKENS = 3
"""Tokens per row of the comparison with the model's own layers."""


class ForwardContext(NamedTuple):
    """Inputs that all layers of a step share."""

    cache: KVCache
    plan: WritePlan
    cos_sin_BD: tuple[Tensor, Tensor]
    prefix_view: PrefixView | None
    visible: tuple[Tensor, ...]
    """How many tokens of each prefix each row attends to."""
    tiles: Any
    """Query tiles (``decode_attention.Tiles``); None if each token attends by itself."""


class _MergedBlock(NamedTuple):
    """The linear layers of one block, merged by input, in the order of ``BlockLinears``."""

    qkv: MergedLinears
    output: MergedLinears
    gate_up: MergedLinears
    down: MergedLinears

    @classmethod
    def merge(cls, linears: BlockLinears, *, qkv: bool, gate_up: bool) -> "_MergedBlock":
        return cls(
            qkv=MergedLinears(linears.qkv, merge=qkv),
            output=MergedLinears(linears.output, merge=False),
            gate_up=MergedLinears(linears.gate_up, merge=gate_up),
            down=MergedLinears(linears.down, merge=False),
        )


class FusedDecoder:
    """Computes the next token's logits for rows of a KV cache."""

    def __init__(self, causal: PreTrainedModel) -> None:
        self._base: Any = causal.base_model
        self._head = LMHead(causal)
        self._kernels = load_kernels("decode")
        self._attention_kernels = load_kernels("decode_attention")
        config = causal.config.get_text_config()
        group = config.num_attention_heads // config.num_key_value_heads
        self.tile_size: int = self._attention_kernels.tile_size(group)
        blocks = [block_linears(block) for block in self._base.layers]
        # Alone, keys and values of a few heads leave most of a GPU idle, in a model of any size.
        qkv = _num_bytes(layer for block in blocks for layer in block.qkv) <= MAX_MERGED_BYTES
        gate_up = _num_bytes([causal]) <= MAX_MERGED_BYTES
        self._linears = [_MergedBlock.merge(block, qkv=qkv, gate_up=gate_up) for block in blocks]
        self._copied: list[Tensor] = []
        self._version = 0
        self.refresh_weights(force=True)

    def refresh_weights(self, *, force: bool = False) -> None:
        """Copy the model's weights again if they changed.

        ``force=True`` also copies if versions match: another adapter may have become active.
        """
        if not force and self._version == _weights_version(self._copied):
            return
        merged = [linears for block in self._linears for linears in block]
        for linears in merged:
            linears.refresh_weights()
        self._copied = [weight for linears in merged for weight in linears.copied]
        self._version = _weights_version(self._copied)

    def __call__(
        self, cache: KVCache, plan: WritePlan, tokens_B: Tensor, prefix_view: PrefixView | None
    ) -> Tensor:
        """Logits_BV after ``tokens_B``, whose keys and values are written as planned."""
        return self._head(self.hidden_states(cache, plan, tokens_B, prefix_view))

    def hidden_states(
        self,
        cache: KVCache,
        plan: WritePlan,
        tokens_B: Tensor,
        prefix_view: PrefixView | None,
        tiles_2M: Tensor | None = None,
    ) -> Tensor:
        """Hidden states of tokens, of which a row may have several; writes the KV cache.

        With ``tiles_2M``, first token and length of each query tile, the tokens of a tile attend
        to their row together.
        """
        base = self._base
        hidden_BE: Tensor = base.embed_tokens(tokens_B)
        added_BE: Tensor | None = None
        context = self._context(cache, plan, hidden_BE, prefix_view, tiles_2M)
        for number in range(len(self._linears)):
            hidden_BE, added_BE = self._run_layer(number, hidden_BE, added_BE, context)
        return add_norm(self._kernels, base.norm, hidden_BE, added_BE)[1]

    def chunk_context(
        self,
        runner: ModelRunner,
        chunks: Sequence[Chunk],
        hidden_NE: Tensor,
        tiles_2M: Tensor | None,
    ) -> ForwardContext:
        """The inputs of all layers for hidden states at the positions of the chunks' tokens."""
        plans = [runner.write_plan(chunk) for chunk in chunks]
        plan = plans[0]._replace(
            rows_N=torch.cat([plan.rows_N for plan in plans]),
            positions_N=torch.cat([plan.positions_N for plan in plans]),
            length=max(plan.length for plan in plans),
        )
        prefix_view = runner.prefix_view([chunk.prefix for chunk in chunks for _ in chunk.ids])
        return self._context(runner.cache, plan, hidden_NE, prefix_view, tiles_2M)

    def run_layer(self, number: int, hidden_NE: Tensor, context: ForwardContext) -> Tensor:
        """The output of one layer."""
        hidden_NE, added_NE = self._run_layer(number, hidden_NE, None, context)
        return hidden_NE + added_NE

    def _context(
        self,
        cache: KVCache,
        plan: WritePlan,
        hidden_BE: Tensor,
        prefix_view: PrefixView | None,
        tiles_2M: Tensor | None,
    ) -> ForwardContext:
        positions_B = plan.positions_N
        if prefix_view is not None:
            positions_B = positions_B + prefix_view.lengths_B
        cos_sin = self._base.rotary_emb(hidden_BE, positions_B[:, None])
        cos_BD, sin_BD = (tensor[:, 0].contiguous() for tensor in cos_sin)
        visible: tuple[Tensor, ...] = ()
        if prefix_view is not None:
            slots = (prefix.slot for prefix in prefix_view.prefixes)
            visible = tuple(map(prefix_view.visible_lengths, slots))
        tiles = None
        if tiles_2M is not None:
            tiles = self._attention_kernels.Tiles(*tiles_2M, self.tile_size)
        return ForwardContext(cache, plan, (cos_BD, sin_BD), prefix_view, visible, tiles)

    def _run_layer(
        self, number: int, hidden_BE: Tensor, added_BE: Tensor | None, context: ForwardContext
    ) -> tuple[Tensor, Tensor]:
        """The layer's output before its last addition, and the term to add."""
        block, linears = self._base.layers[number], self._linears[number]

        def attention(normed_BE: Tensor) -> Tensor:
            attended_BE = self._attend(block.self_attn, linears.qkv(normed_BE), context)
            (output_BE,) = linears.output(attended_BE)
            return output_BE

        def mlp(normed_BE: Tensor) -> Tensor:
            (output_BE,) = linears.down(linears.gate_up.swiglu(normed_BE))
            return output_BE

        return block_forward(
            block, self._kernels, hidden_BE, added_BE, attention=attention, mlp=mlp
        )

    def _attend(
        self, attention: Any, projected: Sequence[Tensor], context: ForwardContext
    ) -> Tensor:
        states = split_heads(attention, self._kernels, projected)
        plan, view, layer = context.plan, context.prefix_view, attention.layer_idx
        cache, where = context.cache.layer(layer), (plan.rows_N, plan.positions_N)
        query_BHD = self._kernels.rope_and_cache(states, context.cos_sin_BD, cache, where)
        prefixes = view.prefixes if view else ()
        lengths = plan.length, tuple(prefix.length for prefix in prefixes)
        key_heads = states.key_KJD.shape[1]
        splits = self._attention_kernels.SplitKVAttention(
            query_BHD, key_heads, *lengths, context.tiles, plan.shared
        )
        splits.attend_suffix(cache, where)
        for (slot, length), visible_B in zip(prefixes, context.visible, strict=True):
            assert view is not None
            splits.attend_prefix(view.cache.row(layer, slot, length), visible_B)
        return splits.merge().flatten(1)


def make_fused_decoder(
    causal: PreTrainedModel, device: torch.device, *, context: int
) -> FusedDecoder | None:
    """A fused decoder, if the model's architecture is supported and its layers are reproduced.

    ``context`` is the length of the longest sequence.
    """
    if (
        not supports_fused_blocks(causal)
        or plain_causal_length(causal.config) < context
        or _head_dim(causal) not in HEAD_DIMS
    ):
        return None
    decoder = FusedDecoder(causal)
    if is_exact(decoder, causal, device):
        return decoder
    _LOG.warning(
        "The fused decoding step of this %s model differs from the model's own by more than "
        "rounding errors; the model's own step is used, and decoding is slower.",
        causal.config.model_type,
    )
    return None


def is_exact(decoder: FusedDecoder, causal: PreTrainedModel, device: torch.device) -> bool:
    """Whether each layer gives the output of the model's own, with and without a shared prefix.

    Each layer is compared alone, since rounding differences grow from layer to layer.
    """
    runner = ModelRunner(
        causal, context=2 * PAGE_SIZE, slots=2, device=device, max_prefill_tokens=PAGE_SIZE
    )
    base: Any = causal.base_model
    weight: Tensor = base.embed_tokens.weight
    ids = [number % weight.shape[0] for number in range(2 * PAGE_SIZE)]
    before, probe = ids[:-PROBE_TOKENS], ids[-PROBE_TOKENS:]
    prompts = [Chunk(0, 0, before[PAGE_SIZE:], PrefixRef(0, PAGE_SIZE))]
    prompts += [Chunk(slot, 0, before) for slot in (1, 2)]
    probes = [chunk._replace(start=len(chunk.ids), ids=probe) for chunk in prompts]
    # Small compared to a layer's output, which does not depend on the scale of its input.
    count = len(probes) * PROBE_TOKENS * weight.shape[1]
    hidden = 0.05 * torch.arange(count, device=device).sin()
    hidden_BTE = hidden.view(len(probes), PROBE_TOKENS, -1).to(weight.dtype)
    slots = [chunk.slot for chunk in probes for _ in probe]
    tiles_2M = torch.tensor(query_tiles(slots, decoder.tile_size), device=device).t().contiguous()
    prefixes = [SlotPrefix(1, PAGE_SIZE) if slot else SlotPrefix() for slot in slots]
    shared = shared_tiles(prefixes, decoder.tile_size)
    columns_5N = torch.tensor(shared_columns(shared, len(slots)), device=device)
    hidden_NE = hidden_BTE.flatten(0, 1)
    with runner.inference_mode():
        runner.prefill_prefix(0, before[:PAGE_SIZE])
        for chunk in prompts:
            runner.append([chunk])
        tiled = decoder.chunk_context(runner, probes, hidden_NE, tiles_2M)
        plan = tiled.plan._replace(shared=SharedTiles(*columns_5N, num_tiles=len(shared)))
        contexts = [tiled, tiled._replace(plan=plan, tiles=None)]
        for number, layer in enumerate(base.layers):
            pairs = zip(probes, hidden_BTE.split(1), strict=True)
            expected = [runner.run_layer(layer, *pair) for pair in pairs]
            expected_NE = torch.cat(expected).flatten(0, 1)
            outputs = [decoder.run_layer(number, hidden_NE, context) for context in contexts]
            if not all(allclose_relative(output_NE, expected_NE) for output_NE in outputs):
                return False
    return True


def query_tiles(slots: Sequence[int], size: int) -> list[tuple[int, int]]:
    """First token and number of tokens of each tile, given the slot of each token, in order."""
    tiles: list[tuple[int, int]] = []
    start = 0
    for _, run in groupby(slots):
        end = start + len(list(run))
        tiles += [(first, min(size, end - first)) for first in range(start, end, size)]
        start = end
    return tiles


def _weights_version(weights: Sequence[Tensor]) -> int:
    """A number that changes when a weight is written to or moved."""
    return sum(weight._version + weight.data_ptr() for weight in weights)


def _num_bytes(modules: Iterable[nn.Module]) -> int:
    return sum(weight.nbytes for module in modules for weight in module.parameters())


def _head_dim(causal: PreTrainedModel) -> int:
    base: Any = causal.base_model
    return base.layers[0].self_attn.head_dim
