"""KV cache with one slot (row) per sequence.

Shapes: N new tokens of all rows of a forward pass, R rows that are copied.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin
from typing_extensions import override

from grpo_cl.gpu_memory.constants import MIN_CAPACITY

COPIED_BYTES = 2**25
"""Size limit of the temporary copy while rows are copied; more is copied in pieces."""


class SlotPrefix(NamedTuple):
    """The first tokens of a slot, which another slot of the same KV cache holds too."""

    slot: int = 0
    """The other slot."""
    length: int = 0


class SharedTiles(NamedTuple):
    """Rows with the same first tokens, which attend to those together, in tiles."""

    lengths_B: Tensor
    """How many of a row's tokens its tile attends to; 0 for a row without a tile."""
    members_B: Tensor
    """The rows of the first tile, then those of the next."""
    firsts_M: Tensor
    counts_M: Tensor
    """First member and number of members of each tile; some tiles may be empty."""
    slots_M: Tensor
    """Where the tokens of each tile are read."""
    num_tiles: int
    """How many of the tiles are used."""


class WritePlan(NamedTuple):
    """Where one forward pass writes its keys and values, and which rows it attends to."""

    rows: slice | Tensor
    """A slice if the rows are adjacent, which needs no copy; otherwise their indices."""
    rows_N: Tensor
    positions_N: Tensor
    sources_N: Tensor | None
    """Indices of the new tokens in the flattened padded batch; None without padding."""
    num_rows: int
    """Rows the cache must have."""
    length: int
    """Tokens of the longest row, including the new ones."""
    shared: SharedTiles | None = None
    """The tokens, one per row, whose prompt fused decoding reads once for all rows of a group."""


class KVCacheLayer(CacheLayerMixin):
    """Keys and values of one layer, [rows, heads, capacity, head_dim], grown as needed."""

    def __init__(self, slots: int, context: int) -> None:
        super().__init__()
        self.slots = slots
        self.context = context
        self.buffers: list[Tensor] = []
        self.write_plan: WritePlan | None = None

    @override
    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Create empty buffers with the heads, head_dim, dtype and device of the states."""
        self.buffers = [
            states.new_empty(0, states.shape[1], 0, states.shape[3])
            for states in (key_states, value_states)
        ]
        self.is_initialized = True

    @override
    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new states; return the keys and values of the plan's rows."""
        assert self.write_plan is not None
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.reserve(self.write_plan.num_rows, self.write_plan.length)
        attended = [
            _write(buffer, states, self.write_plan)
            for buffer, states in zip(self.buffers, (key_states, value_states), strict=True)
        ]
        return attended[0], attended[1]

    def reserve(self, rows: int, length: int) -> None:
        """Grow to at least ``rows`` rows of ``length`` tokens, by doubling."""
        for index, old in enumerate(self.buffers):
            old_rows, old_length = old.shape[0], old.shape[2]
            if rows <= old_rows and length <= old_length:
                continue
            new_rows = _doubled(old_rows, rows, self.slots)
            new_length = _doubled(old_length, max(length, MIN_CAPACITY), self.context)
            # Zeros: masked values are still multiplied by 0, and uninitialised memory may be NaN.
            new = old.new_zeros(new_rows, old.shape[1], new_length, old.shape[3])
            new[:old_rows, :, :old_length] = old
            self.buffers[index] = new

    def copy(self, sources_R: Tensor, targets_R: Tensor, length: int) -> None:
        """Copy the first ``length`` tokens of the source rows to the target rows."""
        for buffer in self.buffers:
            token_bytes = len(sources_R) * buffer.shape[1] * buffer.shape[3] * buffer.element_size()
            step = max(1, COPIED_BYTES // token_bytes)
            for start in range(0, length, step):
                part = buffer[:, :, start : min(start + step, length)]
                # index_select finishes reading before the write, so rows can be swapped.
                part[targets_R] = part.index_select(0, sources_R)

    @override
    def get_seq_length(self) -> int:
        """Tokens of the longest row; unused, since positions and masks are passed explicitly."""
        return self.write_plan.length if self.write_plan else 0

    @override
    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Number of attended tokens, and the offset of the first."""
        return self.get_seq_length(), 0

    @override
    def get_max_length(self) -> int:
        """Most tokens a row can hold."""
        return self.context


def _write(buffer: Tensor, states: Tensor, plan: WritePlan) -> Tensor:
    states_NHD = states.transpose(1, 2).flatten(0, 1)
    if plan.sources_N is not None:
        states_NHD = states_NHD[plan.sources_N]
    buffer[plan.rows_N, :, plan.positions_N] = states_NHD
    return buffer[:, :, : plan.length][plan.rows]


def _doubled(size: int, needed: int, limit: int) -> int:
    size = max(size, 1)
    while size < needed:
        size *= 2
    return min(size, limit)


class KVCache(Cache):
    """Keys and values of all layers; a layer is created on its first update."""

    def __init__(self, slots: int, context: int) -> None:
        self._size = (slots, context)
        self._write_plan: WritePlan | None = None
        self._kv_layers: list[KVCacheLayer] = []
        super().__init__(layers=[])

    @override
    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one layer's new states; return the keys and values of the plan's rows."""
        while len(self._kv_layers) <= layer_idx:
            layer = KVCacheLayer(*self._size)
            self._kv_layers.append(layer)
            self.layers.append(layer)
        layer = self._kv_layers[layer_idx]
        layer.write_plan = self._write_plan
        return layer.update(key_states, value_states)

    def set_write_plan(self, plan: WritePlan) -> None:
        """Set where the next forward pass writes."""
        self._write_plan = plan

    @property
    def address(self) -> int | None:
        """Device address of the first layer's keys; None before the first pass."""
        return self._kv_layers[0].buffers[0].data_ptr() if self._kv_layers else None

    def layer(self, number: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer."""
        keys, values = self._kv_layers[number].buffers
        return keys, values

    def row(self, layer: int, number: int, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a row's first tokens, each [heads, length, head_dim]."""
        keys, values = self.layer(layer)
        return keys[number, :, :length], values[number, :, :length]

    def reserve(self, rows: int, length: int) -> None:
        """Grow every layer to at least ``rows`` rows of ``length`` tokens."""
        for layer in self._kv_layers:
            layer.reserve(rows, length)

    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the first ``length`` tokens of each source row to its target row.

        A row may be both source and target. A source may hold fewer tokens: the entries after
        them are finite, and are overwritten before anything attends to them.
        """
        if not self._kv_layers:
            return  # a model without attention, such as the tabular policy
        self.reserve(max(*sources, *targets) + 1, length)
        device = self._kv_layers[0].buffers[0].device
        # One transfer for all layers: each waits for all kernels launched before it.
        sources_R, targets_R = torch.tensor([sources, targets], device=device)
        for layer in self._kv_layers:
            layer.copy(sources_R, targets_R, length)

    def clear(self) -> None:
        """Free all memory."""
        self._kv_layers = []
        self.layers = []
