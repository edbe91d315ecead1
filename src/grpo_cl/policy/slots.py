"""A causal language model that reads many conversations with one cache of keys and values.

Each conversation owns a row of the cache. A forward pass appends to any set of rows, each at its
own position, so rows of different lengths share a batch without padding on the left.

Shapes: B rows of a pass, T new tokens of a row (padded on the right), K tokens a row can look at,
N new tokens of all rows, V vocabulary.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin
from typing_extensions import override

from grpo_cl.errors import ConfigError
from grpo_cl.policy import attention

MIN_CAPACITY = 64
FULL, SLIDING = "full_attention", "sliding_attention"


class Chunk(NamedTuple):
    """Tokens that a row reads next."""

    row: int
    start: int
    """How many tokens the row already holds."""
    ids: Sequence[int]


class Span(NamedTuple):
    """Where one forward pass writes its keys and values, and what it looks at."""

    rows: slice | Tensor
    """A slice where the rows are neighbours: those are read in place, others are copied."""
    rows_N: Tensor
    positions_N: Tensor
    sources_N: Tensor | None
    """The new tokens among all of a padded batch; None where nothing is padded."""
    num_rows: int
    """Rows that must exist."""
    length: int
    """The longest row, new tokens included."""


class SlotLayer(CacheLayerMixin):
    """The keys and values of one layer, [rows, heads, capacity, width], grown as needed."""

    def __init__(self, slots: int, context: int) -> None:
        super().__init__()
        self.slots = slots
        self.context = context
        self.buffers: list[Tensor] = []
        self.span: Span | None = None

    @override
    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Start with buffers without rows; they have the states' heads, width, dtype and device."""
        self.buffers = [
            states.new_empty(0, states.shape[1], 0, states.shape[3])
            for states in (key_states, value_states)
        ]
        self.is_initialized = True

    @override
    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new states where the span says; what its rows look at, in return."""
        assert self.span is not None
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.fit(self.span.num_rows, self.span.length)
        seen = [
            _write(buffer, states, self.span)
            for buffer, states in zip(self.buffers, (key_states, value_states), strict=True)
        ]
        return seen[0], seen[1]

    def fit(self, rows: int, length: int) -> None:
        """Make room for ``rows`` rows of ``length`` tokens, twice as much as before if any."""
        for index, old in enumerate(self.buffers):
            held_rows, held_length = old.shape[0], old.shape[2]
            if rows <= held_rows and length <= held_length:
                continue
            new_rows = _grown(held_rows, rows, self.slots)
            new_length = _grown(held_length, max(length, MIN_CAPACITY), self.context)
            # Zeros, because what is masked is still multiplied, and memory may hold a NaN.
            new = old.new_zeros(new_rows, old.shape[1], new_length, old.shape[3])
            new[:held_rows, :, :held_length] = old
            self.buffers[index] = new

    def copy(self, source: int, target: int, length: int) -> None:
        """Give row ``target`` the first ``length`` tokens of row ``source``."""
        self.fit(target + 1, length)
        for buffer in self.buffers:
            buffer[target, :, :length] = buffer[source, :, :length]

    def swap(self, one: int, other: int, length: int) -> None:
        """Exchange the first ``length`` tokens of two rows."""
        self.fit(max(one, other) + 1, length)
        for buffer in self.buffers:
            kept = buffer[one, :, :length].clone()
            buffer[one, :, :length] = buffer[other, :, :length]
            buffer[other, :, :length] = kept

    @override
    def get_seq_length(self) -> int:
        """The longest row; positions and masks are given explicitly, so nobody counts on it."""
        return self.span.length if self.span else 0

    @override
    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """How many tokens are looked at, and the first of them."""
        return self.get_seq_length(), 0

    @override
    def get_max_length(self) -> int:
        """The longest a row can become."""
        return self.context


def _write(buffer: Tensor, states: Tensor, span: Span) -> Tensor:
    states_NHD = states.transpose(1, 2).flatten(0, 1)
    if span.sources_N is not None:
        states_NHD = states_NHD[span.sources_N]
    buffer[span.rows_N, :, span.positions_N] = states_NHD
    return buffer[:, :, : span.length][span.rows]


def _grown(held: int, needed: int, limit: int) -> int:
    size = max(held, 1)
    while size < needed:
        size *= 2
    return min(size, limit)


class SlotCache(Cache):
    """The cache of all layers; layers appear as the model asks for them."""

    def __init__(self, slots: int, context: int) -> None:
        self._size = (slots, context)
        self._span: Span | None = None
        self._slot_layers: list[SlotLayer] = []
        super().__init__(layers=[])

    @override
    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one layer's new states; the states its rows look at, in return."""
        while len(self._slot_layers) <= layer_idx:
            layer = SlotLayer(*self._size)
            self._slot_layers.append(layer)
            self.layers.append(layer)
        layer = self._slot_layers[layer_idx]
        layer.span = self._span
        return layer.update(key_states, value_states)

    def place(self, span: Span) -> None:
        """Say where the next forward pass writes."""
        self._span = span

    @property
    def address(self) -> int | None:
        """Where the first layer's keys are; None before the first pass."""
        return self._slot_layers[0].buffers[0].data_ptr() if self._slot_layers else None

    def fit(self, rows: int, length: int) -> None:
        """Make room in every layer."""
        for layer in self._slot_layers:
            layer.fit(rows, length)

    def copy(self, source: int, target: int, length: int) -> None:
        """Give row ``target`` the first ``length`` tokens of row ``source``."""
        for layer in self._slot_layers:
            layer.copy(source, target, length)

    def swap(self, one: int, other: int, length: int) -> None:
        """Exchange the first ``length`` tokens of two rows."""
        for layer in self._slot_layers:
            layer.swap(one, other, length)

    def clear(self) -> None:
        """Give all memory back."""
        self._slot_layers = []
        self.layers = []


class SlotReader:
    """Runs a causal language model over rows of a cache."""

    def __init__(
        self, module: nn.Module, *, context: int, slots: int, device: torch.device
    ) -> None:
        self.slots = slots
        self.context = context
        self.cache = SlotCache(slots + 1, context)
        """One row more than there are slots: it belongs to nobody and takes what is not kept."""
        self._module = module
        self._device = device
        config: Any = module.config
        self._config = config.get_text_config()
        self._windows = _windows(self._config.to_dict())
        if self._config._attn_implementation != "eager" and not module._supports_sdpa:
            raise ConfigError(
                f"the transformers sampler cannot pass its masks to the "
                f"{self._config._attn_implementation!r} attention of model type "
                f"{self._config.model_type!r}; load the model with flash_attention=false."
            )
        attention.register()

    def read(self, chunks: Sequence[Chunk]) -> Tensor:
        """Append each chunk to its row; logits_BV after the last column of the batch.

        Only where all chunks are equally long are these the logits after each chunk.
        """
        width = max(len(chunk.ids) for chunk in chunks)
        length = max(chunk.start + len(chunk.ids) for chunk in chunks)
        padded = [[*chunk.ids, *[0] * (width - len(chunk.ids))] for chunk in chunks]
        starts_B1 = self._tensor([[chunk.start] for chunk in chunks])
        positions_BT = starts_B1 + torch.arange(width, device=self._device)
        positions_BT.clamp_(max=length - 1)  # padding may reach past what a model can count
        self.cache.place(self._span(chunks, positions_BT, length))
        output: Any = self._module(
            input_ids=self._tensor(padded),
            position_ids=positions_BT,
            attention_mask=self.mask(positions_BT, length),
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]

    def reserve(self, length: int) -> None:
        """Have room for ``length`` tokens in every row, and let it stay where it is."""
        if self.cache.address is None:  # only a pass tells how many layers there are
            self.read([Chunk(self.slots, 0, [0])])
        self.cache.fit(self.slots + 1, length)

    @contextmanager
    def sampling(self) -> Generator[None]:
        """Evaluation mode, no gradients, and an attention that takes masks of any form."""
        chosen, was_training = self._config._attn_implementation, self._module.training
        if was_training:
            self._module.eval()
        if chosen != "eager":  # what a model with its own attention is loaded with
            self._config._attn_implementation = attention.NAME
        try:
            with torch.inference_mode():
                yield
        finally:
            self._config._attn_implementation = chosen
            if was_training:
                self._module.train()

    def _tensor(self, values: Sequence[Any]) -> Tensor:
        return torch.tensor(values, device=self._device)

    def _span(self, chunks: Sequence[Chunk], positions_BT: Tensor, length: int) -> Span:
        rows = [chunk.row for chunk in chunks]
        first, end = rows[0], rows[0] + len(rows)
        sources_N = self._sources([len(chunk.ids) for chunk in chunks], positions_BT.shape[1])
        positions_N = positions_BT.flatten()
        return Span(
            rows=slice(first, end) if rows == list(range(first, end)) else self._tensor(rows),
            rows_N=self._tensor([chunk.row for chunk in chunks for _ in chunk.ids]),
            positions_N=positions_N if sources_N is None else positions_N[sources_N],
            sources_N=sources_N,
            num_rows=max(rows) + 1,
            length=length,
        )

    def _sources(self, lengths: Sequence[int], width: int) -> Tensor | None:
        if min(lengths) == width:
            return None
        starts = range(0, len(lengths) * width, width)
        pairs = zip(starts, lengths, strict=True)
        return self._tensor([start + t for start, count in pairs for t in range(count)])

    def mask(self, positions_BT: Tensor, length: int) -> Tensor | dict[str, Tensor]:
        """What the tokens at ``positions_BT`` see of ``length``, for each kind of layer."""
        dtype = next(self._module.parameters()).dtype
        keys_K = torch.arange(length, device=self._device)
        queries_B1T1 = positions_BT[:, None, :, None]
        masks: dict[str, Tensor] = {}
        for kind, window in self._windows.items():
            seen_B1TK = keys_K <= queries_B1T1
            if window is not None:
                seen_B1TK &= keys_K > queries_B1T1 - window
            hidden = torch.zeros(seen_B1TK.shape, dtype=dtype, device=self._device)
            masks[kind] = hidden.masked_fill_(~seen_B1TK, torch.finfo(dtype).min)
        return masks if len(masks) > 1 else next(iter(masks.values()))


def _windows(config: dict[str, Any]) -> dict[str, int | None]:
    """How far back the layers of each kind look; None for all the way."""
    window = config.get("sliding_window")
    kinds = set(config.get("layer_types") or [SLIDING if window else FULL])
    unknown = sorted(kinds - {FULL, SLIDING})
    if unknown:
        raise ConfigError(
            f"model type {config.get('model_type')!r} has layers of kind {', '.join(unknown)}; the "
            f"transformers sampler knows {FULL} and {SLIDING}. Sample with another engine."
        )
    return {kind: window if kind == SLIDING else None for kind in sorted(kinds)}
