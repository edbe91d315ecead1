"""CUDA graphs of the decoding step, each for a number of rows and a length.

A small model's step is hundreds of kernels of a few microseconds each, whose launches cost more
than their execution. A graph launches all with one call, and feeds each sampled token back itself.

Shapes: B rows (replies), S steps, V vocabulary.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grpo_cl.gpu_memory.constants import GRAPH_STEPS
from grpo_cl.policy.inference.fused_decode import FusedDecoder
from grpo_cl.policy.inference.model_runner import Chunk, ModelRunner
from grpo_cl.policy.inference.shared_tiles import SharedTile, max_shared_tiles, shared_columns
from grpo_cl.policy.inference.token_sampling import (
    SampledToken,
    SampleParams,
    sample_rows,
    to_sampled_tokens,
)
from grpo_cl.policy.kernels.kv_cache import SharedTiles, WritePlan
from grpo_cl.policy.kernels.prefix_view import NO_PREFIX, PrefixRef, PrefixView
from grpo_cl.policy.kernels.triton_support import load_kernels


class DecodeResult(NamedTuple):
    """Sampled tokens, possibly still being copied from the device."""

    pairs_BS2: Tensor
    """Each row's tokens and their log-probs; valid after ``copied``."""
    copied: Any = None
    """CUDA event of the copy to the host; None if there is nothing to wait for."""
    graph: "DecodeGraph | None" = None
    end: int = 0
    """Tokens of the longest row afterwards."""

    def tokens(self) -> list[list[SampledToken]]:
        """The sampled tokens of each row; waits for the copy."""
        if self.copied is not None:
            self.copied.synchronize()
        return [to_sampled_tokens(row) for row in self.pairs_BS2.tolist()]

    @property
    def has_room(self) -> bool:
        """Whether ``decode_more`` can run before these tokens are read: only graphs can."""
        return self.graph is not None and self.end + GRAPH_STEPS <= self.graph.length

    def decode_more(self, params: Sequence[Sequence[SampleParams]]) -> "DecodeResult":
        """Decode the next tokens of the same rows."""
        assert self.graph is not None
        self.graph.set_params(params)
        return self.graph.run(len(params), self.end + GRAPH_STEPS)


class DecodeGraphSize(NamedTuple):
    """The batch that one graph can decode."""

    rows: int
    length: int
    prefixes: tuple[PrefixRef, ...]
    """The shared prefixes that rows attend to, with their lengths."""
    has_top_p: bool
    """Whether any row has a ``top_p`` below 1, which needs a sorted vocabulary."""
    has_shared: bool = False
    """Whether any rows attend to shared tokens in tiles."""


class _Inputs(NamedTuple):
    """Tensors at fixed addresses that a graph reads and updates.

    The first two hold all numbers that the host sets, and the others from ``slots_B`` on are parts
    of them: few transfers for all.
    """

    integers_NB: Tensor
    floats_NB: Tensor
    step_1: Tensor
    slots_B: Tensor
    """Where keys and values are written; unused rows write to the dummy slot."""
    positions_B: Tensor
    tokens_B: Tensor
    prefix_slots_B: Tensor
    prefix_lengths_B: Tensor
    """Each row's shared prefix."""
    shared_lengths_B: Tensor
    shared_members_B: Tensor
    shared_firsts_B: Tensor
    shared_counts_B: Tensor
    shared_tile_slots_B: Tensor
    """The numbers of ``SharedTiles``."""
    temperatures_B1: Tensor
    top_ps_B1: Tensor
    uniforms_SB1: Tensor

    @classmethod
    def allocate(cls, rows: int, device: torch.device) -> "_Inputs":
        integers_NB = torch.zeros(10, rows, dtype=torch.long, device=device)
        floats_NB = torch.full((2 + GRAPH_STEPS, rows), 0.5, dtype=torch.double, device=device)
        temperatures_B1, top_ps_B1, *_ = floats_NB[..., None]
        step_1 = torch.zeros(1, dtype=torch.long, device=device)
        return cls(
            integers_NB,
            floats_NB,
            step_1,
            *integers_NB,
            temperatures_B1=temperatures_B1,
            top_ps_B1=top_ps_B1,
            uniforms_SB1=floats_NB[2:, :, None],
        )

    def shared_tiles(self) -> SharedTiles:
        """The tiles of rows that attend to shared tokens."""
        return SharedTiles(
            self.shared_lengths_B,
            self.shared_members_B,
            self.shared_firsts_B,
            self.shared_counts_B,
            self.shared_tile_slots_B,
            max_shared_tiles(len(self.slots_B)),
        )


class DecodeGraph:
    """The decoding step for a number of rows and a length."""

    def __init__(
        self, runner: ModelRunner, fused: FusedDecoder | None, size: DecodeGraphSize
    ) -> None:
        self._runner = runner
        self._fused = fused
        self._size = size
        device = runner.device
        self._inputs = _Inputs.allocate(self._size.rows, device)
        self._pairs_SB2 = torch.zeros(GRAPH_STEPS, size.rows, 2, dtype=torch.double, device=device)
        self._sampling = load_kernels("sampling") if fused is not None else None
        self._inputs.slots_B.fill_(runner.slots)
        self._replay: Callable[[], None] = self._step

    @classmethod
    def capture(
        cls, runner: ModelRunner, fused: FusedDecoder | None, size: DecodeGraphSize, pool: Any
    ) -> "DecodeGraph":
        """Run the step for warm-up and capture it; on a CPU the step itself is run later."""
        graph = cls(runner, fused, size)
        graph._replay = capture_graph(graph._step, runner.device, pool)
        return graph

    @property
    def length(self) -> int:
        """Most tokens of a row."""
        return self._size.length

    def run(self, rows: int, end: int) -> DecodeResult:
        """Decode ``GRAPH_STEPS`` tokens of the first rows."""
        for _ in range(GRAPH_STEPS):
            self._replay()
        # A copy, since the next run overwrites the pairs; contiguous, for a single transfer.
        pairs_BS2 = (
            self._pairs_SB2[:, :rows].transpose(0, 1).clone(memory_format=torch.contiguous_format)
        )
        if not pairs_BS2.is_cuda:
            return DecodeResult(pairs_BS2, None, self, end)
        host_BS2 = torch.empty(pairs_BS2.shape, dtype=torch.double, pin_memory=True)
        host_BS2.copy_(pairs_BS2, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
        return DecodeResult(host_BS2, copied, self, end)

    def set_inputs(
        self,
        chunks: Sequence[Chunk],
        params: Sequence[Sequence[SampleParams]],
        tiles: Sequence[SharedTile],
    ) -> None:
        """Set the rows' last tokens, positions and prefixes, and how the next are sampled."""
        unused = self._size.rows - len(chunks)
        rows = [(slot, start, ids[0], *prefix) for slot, start, ids, prefix, _ in chunks]
        rows += [(self._runner.slots, 0, 0, *NO_PREFIX)] * unused
        columns = [*zip(*rows, strict=True), *shared_columns(tiles, self._size.rows)]
        temperatures = [*(row[0].temperature for row in params), *[0.0] * unused]
        top_ps = [*(row[0].top_p for row in params), *[1.0] * unused]
        copy_numbers(columns, self._inputs.integers_NB)
        copy_numbers([temperatures, top_ps, *self._uniforms(params)], self._inputs.floats_NB)
        self._inputs.step_1.zero_()

    def set_params(self, params: Sequence[Sequence[SampleParams]]) -> None:
        """Set the next tokens' random numbers; other inputs stay as the last run left them."""
        copy_numbers(self._uniforms(params), self._inputs.floats_NB[2:])
        self._inputs.step_1.zero_()

    def _uniforms(self, params: Sequence[Sequence[SampleParams]]) -> list[list[float]]:
        """The random numbers of each step; unused rows have 0."""
        unused = [0.0] * (self._size.rows - len(params))
        return [[*(row[step].uniform for row in params), *unused] for step in range(GRAPH_STEPS)]

    def _step(self) -> None:
        inputs, size = self._inputs, self._size
        plan = WritePlan(
            rows=slice(0, size.rows),
            rows_N=inputs.slots_B,
            positions_N=inputs.positions_B,
            sources_N=None,
            num_rows=size.rows,
            length=size.length,
            shared=inputs.shared_tiles() if size.has_shared else None,
        )
        prefix_view = None
        if size.prefixes:
            prefix_view = PrefixView(
                self._runner.prefix_kv,
                size.prefixes,
                inputs.prefix_slots_B,
                inputs.prefix_lengths_B,
            )
        pairs_B2 = self._sample(self._logits(plan, prefix_view))
        self._pairs_SB2.index_copy_(0, inputs.step_1, pairs_B2[None])
        inputs.tokens_B.copy_(pairs_B2[:, 0])
        inputs.positions_B.add_(1).clamp_(max=size.length - 1)
        inputs.step_1.add_(1)

    def _logits(self, plan: WritePlan, prefix_view: PrefixView | None) -> Tensor:
        runner, inputs = self._runner, self._inputs
        if self._fused is not None:
            return self._fused(runner.cache, plan, inputs.tokens_B, prefix_view)
        tokens_B1, positions_B1 = inputs.tokens_B[:, None], inputs.positions_B[:, None]
        return runner.forward(runner.cache, plan, tokens_B1, positions_B1, prefix_view)

    def _sample(self, logits_BV: Tensor) -> Tensor:
        """Each row's token and its log-prob."""
        inputs = self._inputs
        uniforms_B1 = inputs.uniforms_SB1.index_select(0, inputs.step_1)[0]
        if self._sampling is not None and not self._size.has_top_p:
            return self._sampling.sample_rows(logits_BV, uniforms_B1, inputs.temperatures_B1)
        top_ps_B1 = inputs.top_ps_B1 if self._size.has_top_p else None
        return sample_rows(logits_BV, uniforms_B1, inputs.temperatures_B1, top_ps_B1)


def copy_numbers(values: Sequence[Sequence[float]], target: Tensor) -> None:
    """Copy numbers to a tensor on the device; the host does not wait for kernels before it."""
    # From pageable memory a copy waits until the device has run everything launched so far.
    numbers = torch.tensor(values, dtype=target.dtype, pin_memory=target.is_cuda)
    target.copy_(numbers, non_blocking=True)


def capture_graph(step: Callable[[], None], device: torch.device, pool: Any) -> Callable[[], None]:
    """Capture a step as a CUDA graph and return its replay; on a CPU the step itself."""
    if device.type != "cuda":
        return step
    # Warm-up on a side stream, so that lazy initialisation is not captured.
    stream = _warmup_stream(device)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        step()
    return graph.replay


@cache
def _warmup_stream(device: torch.device) -> torch.cuda.Stream:
    """One stream for all graphs: cuBLAS keeps a workspace for every stream it has run on."""
    return torch.cuda.Stream(device)
