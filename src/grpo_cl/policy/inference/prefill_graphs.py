"""CUDA graphs of short prefills, each for a number of tokens and a length.

A tool result is some hundred tokens, and launching the kernels of a prefill costs far more than
running them. One prefill appends tokens to any slots.

Shapes: N tokens, M query tiles.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from grpo_cl.policy.inference.cuda_graphs import capture_graph, copy_numbers
from grpo_cl.policy.inference.fused_decode import FusedDecoder, query_tiles
from grpo_cl.policy.inference.model_runner import Chunk, ModelRunner
from grpo_cl.policy.kernels.kv_cache import WritePlan
from grpo_cl.policy.kernels.prefix_view import PrefixRef, PrefixView


def token_columns(chunks: Sequence[Chunk]) -> list[list[int]]:
    """Ids, slots, positions, prefix slots and prefix lengths of the tokens of all chunks."""
    columns: list[list[int]] = [[] for _ in range(5)]
    for slot, start, ids, prefix, _ in chunks:
        slots, prefix_slots, lengths = ([value] * len(ids) for value in (slot, *prefix))
        added = ids, slots, range(start, start + len(ids)), prefix_slots, lengths
        for column, more in zip(columns, added, strict=True):
            column += more
    return columns


class PrefillGraphSize(NamedTuple):
    """The prefill that one graph can run."""

    tokens: int
    length: int
    prefixes: tuple[PrefixRef, ...]
    """The shared prefixes that tokens attend to, with their lengths."""


class PrefillGraph:
    """The prefill of up to a number of tokens."""

    def __init__(self, runner: ModelRunner, fused: FusedDecoder, size: PrefillGraphSize) -> None:
        self._runner = runner
        self._fused = fused
        self._size = size
        dummy = token_columns([Chunk(runner.slots, 0, [0])])  # padding writes to the dummy slot
        self._padding = [column * size.tokens for column in dummy]
        # Every slot may have one partial tile.
        max_tiles = min(size.tokens, size.tokens // fused.tile_size + runner.slots + 1)
        self._columns_5N, self._tiles_2M = (
            torch.zeros(shape, dtype=torch.long, device=runner.device)
            for shape in ((len(dummy), size.tokens), (2, max_tiles))
        )
        self._set_inputs([[] for _ in dummy])
        self._replay: Callable[[], None] = self._step

    @classmethod
    def capture(
        cls, runner: ModelRunner, fused: FusedDecoder, size: PrefillGraphSize, pool: Any
    ) -> "PrefillGraph":
        """Run the prefill for warm-up and capture it; on a CPU the prefill itself is run later."""
        graph = cls(runner, fused, size)
        graph._replay = capture_graph(graph._step, runner.device, pool)
        return graph

    def run(self, columns: Sequence[Sequence[int]]) -> None:
        """Append tokens, given as ``token_columns``, to their slots."""
        self._set_inputs(columns)
        self._replay()

    def _set_inputs(self, columns: Sequence[Sequence[int]]) -> None:
        pairs = zip(columns, self._padding, strict=True)
        padded = [[*column, *padding[len(column) :]] for column, padding in pairs]
        tiles = query_tiles(padded[1], self._fused.tile_size)
        tiles += [(0, 0)] * (self._tiles_2M.shape[1] - len(tiles))
        copy_numbers(padded, self._columns_5N)
        copy_numbers(list(zip(*tiles, strict=True)), self._tiles_2M)

    def _step(self) -> None:
        ids_N, slots_N, positions_N, prefix_slots_N, prefix_lengths_N = self._columns_5N
        runner, prefixes = self._runner, self._size.prefixes
        plan = WritePlan(slots_N, slots_N, positions_N, None, runner.slots + 1, self._size.length)
        prefix_view = None
        if prefixes:
            prefix_view = PrefixView(runner.prefix_kv, prefixes, prefix_slots_N, prefix_lengths_N)
        self._fused.hidden_states(runner.cache, plan, ids_N, prefix_view, self._tiles_2M)
