"""Keys and values of many conversations, each in a row of one cache.

Shapes: N new tokens of all rows of a pass, R rows that are copied.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin
from typing_extensions import override

MIN_CAPACITY = 64
COPIED_BYTES = 2**25
"""Most that is held twice while rows are copied: of many long ones, some tokens at a time."""


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

    def copy(self, sources_R: Tensor, targets_R: Tensor, length: int) -> None:
        """Give rows the first ``length`` tokens of others, all at once."""
        for buffer in self.buffers:
            token = len(sources_R) * buffer.shape[1] * buffer.shape[3] * buffer.element_size()
            step = max(1, COPIED_BYTES // token)
            for start in range(0, length, step):
                part = buffer[:, :, start : min(start + step, length)]
                # What is read is complete before anything is written, so rows can change places.
                part[targets_R] = part.index_select(0, sources_R)

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

    @property
    def span(self) -> Span:
        """Where the last pass wrote."""
        assert self._span is not None
        return self._span

    def layer(self, number: int) -> tuple[Tensor, Tensor]:
        """The keys and values of one layer."""
        keys, values = self._slot_layers[number].buffers
        return keys, values

    def row(self, layer: int, number: int, length: int) -> tuple[Tensor, Tensor]:
        """The first keys and values of a row, each [heads, length, width]."""
        keys, values = self.layer(layer)
        return keys[number, :, :length], values[number, :, :length]

    def fit(self, rows: int, length: int) -> None:
        """Make room in every layer."""
        for layer in self._slot_layers:
            layer.fit(rows, length)

    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Give each row of ``targets`` the first ``length`` tokens of its source, all at once.

        A row may be a source and a target. A source may hold fewer tokens: what lies past them is
        numbers all the same, which nobody looks at before the row's next tokens replace them.
        """
        self.fit(max(*sources, *targets) + 1, length)
        device = self._slot_layers[0].buffers[0].device
        # Made once: each transfer to a GPU waits for all that was launched before it.
        sources_R, targets_R = torch.tensor([sources, targets], device=device)
        for layer in self._slot_layers:
            layer.copy(sources_R, targets_R, length)

    def clear(self) -> None:
        """Give all memory back."""
        self._slot_layers = []
        self.layers = []
