"""Runs a causal language model over sequences that share one KV cache.

Each sequence owns a slot (a row) of the cache, which holds its tokens after the shared prefix, if
it has one. A forward pass appends tokens to any set of slots, each at its own position, so that
sequences of different lengths share a batch without left padding.

Shapes: B rows of a pass, T new tokens per row (right-padded), K cached tokens a row may attend to,
N new tokens of all rows, V vocabulary.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from grpo_cl.errors import ConfigError
from grpo_cl.gpu_memory.constants import MAX_PREFIXES, MIN_PREFIX, PAGE_SIZE
from grpo_cl.policy.kernels import attention_dispatch as attention
from grpo_cl.policy.kernels.kv_cache import KVCache, SlotPrefix, WritePlan
from grpo_cl.policy.kernels.prefix_view import (
    NO_PREFIX,
    PrefixRef,
    PrefixView,
)

FULL, SLIDING = "full_attention", "sliding_attention"


class Chunk(NamedTuple):
    """Tokens to append to a slot."""

    slot: int
    start: int
    """How many tokens the slot already holds."""
    ids: Sequence[int]
    prefix: PrefixRef = NO_PREFIX
    """The shared prefix before the slot's first token."""
    shared: SlotPrefix = SlotPrefix()
    """Where the first tokens in the slot may be read instead."""


class ModelRunner:
    """Runs forward passes of a causal language model over slots of a KV cache."""

    def __init__(
        self,
        module: nn.Module,
        *,
        context: int,
        slots: int,
        device: torch.device,
        max_prefill_tokens: int,
    ) -> None:
        self.slots = slots
        self.context = context
        self.cache = KVCache(slots + 1, context)
        """One slot more than requested: the last is a dummy slot for tokens that are not kept."""
        self.prefix_kv = KVCache(MAX_PREFIXES, -(-context // MIN_PREFIX) * MIN_PREFIX)
        self._max_prefill_tokens = max_prefill_tokens
        self._module = module
        self.device = device
        config: Any = module.config
        self._config = config.get_text_config()
        self._windows = _attention_windows(self._config.to_dict(), context)
        if self._config._attn_implementation != "eager" and not module._supports_sdpa:
            raise ConfigError(
                f"the transformers sampler cannot pass its masks to the "
                f"{self._config._attn_implementation!r} attention of model type "
                f"{self._config.model_type!r}; load the model with flash_attention=false."
            )
        attention.register()

    def append(self, chunks: Sequence[Chunk]) -> Tensor:
        """Append each chunk to its slot; returns logits_BV after the last column of the batch.

        These are the logits after each chunk only if all chunks have the same length. Chunks of
        more than one token must share the same prefix.
        """
        prefix_view = self.prefix_view([chunk.prefix for chunk in chunks])
        return self._append(self.cache, chunks, prefix_view)

    def prefill_prefix(self, slot: int, ids: Sequence[int]) -> None:
        """Write the keys and values of ``ids`` to a slot of the prefix KV cache."""
        for start in range(0, len(ids), self._max_prefill_tokens):
            part = ids[start : start + self._max_prefill_tokens]
            self._append(self.prefix_kv, [Chunk(slot, start, part)], None)

    def supports_prefix_cache(self) -> bool:
        """Whether the model's attention reads a separate prefix correctly, tried on a few tokens.

        Some models have an attention function of their own, which ignores the prefix.
        """
        ids = [number % int(self._config.vocab_size) for number in range(PAGE_SIZE + 1)]
        if len(ids) > self.context or set(self._windows) != {FULL}:
            return False
        # Both trials write to the prefix KV cache, which is still empty.
        expected = self._append(self.prefix_kv, [Chunk(0, 0, ids)], None)
        prefix = PrefixRef(0, PAGE_SIZE)
        chunk = Chunk(1, 0, ids[PAGE_SIZE:], prefix)
        actual = self._append(self.prefix_kv, [chunk], self.prefix_view([prefix]))
        return attention.allclose_relative(actual, expected)

    def prefix_view(self, prefixes: Sequence[PrefixRef]) -> PrefixView | None:
        """The prefixes of a pass, given those of its rows; None if there are none."""
        rounded = self.round_prefixes(prefixes, PAGE_SIZE)
        if not rounded:
            return None
        columns_B2 = self._tensor(prefixes)
        return PrefixView(self.prefix_kv, rounded, columns_B2[:, 0], columns_B2[:, 1])

    def round_prefixes(self, prefixes: Sequence[PrefixRef], step: int) -> tuple[PrefixRef, ...]:
        """The distinct prefixes, each with its longest length rounded up to a multiple of ``step``.

        Reserves that much of the prefix KV cache.
        """
        lengths = {slot: 0 for slot, _ in prefixes if slot != NO_PREFIX.slot}
        for slot, length in prefixes:
            if slot in lengths:
                lengths[slot] = max(lengths[slot], -(-length // step) * step)
        if lengths:
            self.prefix_kv.reserve(max(lengths) + 1, max(lengths.values()))
        return tuple(PrefixRef(slot, lengths[slot]) for slot in sorted(lengths))

    def clear(self) -> None:
        """Free the memory of both KV caches."""
        self.cache.clear()
        self.prefix_kv.clear()

    def reserve(self, length: int) -> None:
        """Allocate ``length`` tokens for every slot, so that the cache keeps its address."""
        if self.cache.address is None:  # layers are created by the first forward pass
            self.append([Chunk(self.slots, 0, [0])])
        self.cache.reserve(self.slots + 1, length)

    @contextmanager
    def inference_mode(self) -> Generator[None]:
        """Evaluation mode without gradients, with the attention function for the KV cache."""
        configured, was_training = self._config._attn_implementation, self._module.training
        if was_training:
            self._module.eval()
        if configured != "eager":  # models with their own attention function are loaded with eager
            self._config._attn_implementation = attention.NAME
        try:
            with torch.inference_mode():
                yield
        finally:
            self._config._attn_implementation = configured
            if was_training:
                self._module.train()

    def forward(
        self,
        cache: KVCache,
        plan: WritePlan,
        ids_BT: Tensor,
        positions_BT: Tensor,
        prefix_view: PrefixView | None,
    ) -> Tensor:
        """Logits_BV after the last column; positions count from the start of the slots."""
        inputs = self._model_inputs(cache, plan, positions_BT, prefix_view)
        output: Any = self._module(input_ids=ids_BT, logits_to_keep=1, **inputs)
        return output.logits[:, -1]

    def run_layer(self, layer: nn.Module, chunk: Chunk, hidden_1TE: Tensor) -> Tensor:
        """The output of one layer for hidden states at the positions of a chunk.

        Writes the layer's keys and values to the chunk's slot.
        """
        positions_1T, plan = self._positions_and_plan([chunk])
        prefix_view = self.prefix_view([chunk.prefix])
        inputs = self._model_inputs(self.cache, plan, positions_1T, prefix_view)
        base: Any = self._module.base_model
        cos_sin = base.rotary_emb(hidden_1TE, inputs["position_ids"])
        return layer(hidden_1TE, position_embeddings=cos_sin, **inputs)

    def write_plan(self, chunk: Chunk) -> WritePlan:
        """Where the keys and values of a chunk are written."""
        return self._positions_and_plan([chunk])[1]

    def _model_inputs(
        self,
        cache: KVCache,
        plan: WritePlan,
        positions_BT: Tensor,
        prefix_view: PrefixView | None,
    ) -> dict[str, Any]:
        cache.set_write_plan(plan)
        return {
            "position_ids": positions_BT
            if prefix_view is None
            else positions_BT + prefix_view.lengths_B[:, None],
            "attention_mask": self._mask(positions_BT, plan.length),
            "past_key_values": cache,
            "use_cache": True,
            **({} if prefix_view is None else {"prefix_view": prefix_view}),
        }

    def _append(
        self, cache: KVCache, chunks: Sequence[Chunk], prefix_view: PrefixView | None
    ) -> Tensor:
        positions_BT, plan = self._positions_and_plan(chunks)
        width = positions_BT.shape[1]
        padded = [[*chunk.ids, *[0] * (width - len(chunk.ids))] for chunk in chunks]
        return self.forward(cache, plan, self._tensor(padded), positions_BT, prefix_view)

    def _positions_and_plan(self, chunks: Sequence[Chunk]) -> tuple[Tensor, WritePlan]:
        """Positions_BT of the chunks' tokens, right-padded, and where they are written."""
        width = max(len(chunk.ids) for chunk in chunks)
        length = max(chunk.start + len(chunk.ids) for chunk in chunks)
        starts_B1 = self._tensor([[chunk.start] for chunk in chunks])
        positions_BT = starts_B1 + torch.arange(width, device=self.device)
        positions_BT.clamp_(max=length - 1)  # padding may exceed the model's last position
        return positions_BT, self._write_plan(chunks, positions_BT, length)

    def _tensor(self, values: Sequence[Any]) -> Tensor:
        return torch.tensor(values, device=self.device)

    def _write_plan(self, chunks: Sequence[Chunk], positions_BT: Tensor, length: int) -> WritePlan:
        slots = [chunk.slot for chunk in chunks]
        first, end = slots[0], slots[0] + len(slots)
        sources_N = self._unpadded_index(
            [len(chunk.ids) for chunk in chunks], positions_BT.shape[1]
        )
        positions_N = positions_BT.flatten()
        return WritePlan(
            rows=slice(first, end) if slots == list(range(first, end)) else self._tensor(slots),
            rows_N=self._tensor([chunk.slot for chunk in chunks for _ in chunk.ids]),
            positions_N=positions_N if sources_N is None else positions_N[sources_N],
            sources_N=sources_N,
            num_rows=max(slots) + 1,
            length=length,
        )

    def _unpadded_index(self, lengths: Sequence[int], width: int) -> Tensor | None:
        """Indices_N of the tokens in the flattened batch that are not padding; None if none are."""
        if min(lengths) == width:
            return None
        starts = range(0, len(lengths) * width, width)
        pairs = zip(starts, lengths, strict=True)
        return self._tensor([start + t for start, count in pairs for t in range(count)])

    def _mask(self, positions_BT: Tensor, length: int) -> Tensor | dict[str, Tensor]:
        """The additive causal mask over ``length`` cached tokens, for each kind of layer."""
        dtype = next(self._module.parameters()).dtype
        keys_K = torch.arange(length, device=self.device)
        queries_B1T1 = positions_BT[:, None, :, None]
        masks: dict[str, Tensor] = {}
        for kind, window in self._windows.items():
            visible_B1TK = keys_K <= queries_B1T1
            if window is not None:
                visible_B1TK &= keys_K > queries_B1T1 - window
            mask = torch.zeros(visible_B1TK.shape, dtype=dtype, device=self.device)
            masks[kind] = mask.masked_fill_(~visible_B1TK, torch.finfo(dtype).min)
        return masks if len(masks) > 1 else next(iter(masks.values()))


def _attention_windows(config: dict[str, Any], context: int) -> dict[str, int | None]:
    """The attention window of each kind of layer; None for full attention.

    A window of the whole context is full attention.
    """
    window = config.get("sliding_window")
    kinds = set(config.get("layer_types") or [SLIDING if window else FULL])
    unknown = sorted(kinds - {FULL, SLIDING})
    if unknown:
        raise ConfigError(
            f"model type {config.get('model_type')!r} has layers of kind {', '.join(unknown)}; the "
            f"transformers sampler supports {FULL} and {SLIDING}. Choose another sampling.engine."
        )
    if window and window >= context:
        return {FULL: None}
    return {kind: window if kind == SLIDING else None for kind in sorted(kinds)}
