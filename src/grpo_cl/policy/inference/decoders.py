"""Decoders: one token per forward pass, or on a GPU several tokens per call from CUDA graphs.

Several steps of a graph run before the host reads their tokens, and the next ones while it reads;
tokens sampled after the end of a reply are dropped.

Shapes: B rows (replies), V vocabulary.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, cast

import torch
from peft import PeftModel
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from grpo_cl.gpu_memory.constants import GRAPH_STEPS, MAX_GRAPH_LENGTH, MIN_PREFIX, RESERVED_TOKENS
from grpo_cl.policy.inference.cuda_graphs import DecodeGraph, DecodeGraphSize, DecodeResult
from grpo_cl.policy.inference.fused_decode import FusedDecoder, make_fused_decoder
from grpo_cl.policy.inference.model_runner import Chunk, ModelRunner
from grpo_cl.policy.inference.prefill_graphs import PrefillGraph, PrefillGraphSize, token_columns
from grpo_cl.policy.inference.shared_tiles import shared_tiles
from grpo_cl.policy.inference.token_sampling import SampleParams, constrain, sample
from grpo_cl.policy.kernels.prefix_view import PrefixRef
from grpo_cl.policy.model.logprobs import causal_model

ROWS = (1, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512)
LENGTHS = (256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, MAX_GRAPH_LENGTH)
"""Batch sizes and lengths of decode graphs; above the last one, its multiples."""
PREFILL_TOKENS = (32, 128, 512, 1024, 2048)
"""Numbers of tokens of prefill graphs."""
PREFILL_LENGTHS = (1024, 4096)
"""Row lengths of prefill graphs; unused length costs them little."""
MAX_GRAPH_PREFILL = 16384
"""Most tokens prefilled by graphs: with more, the launches of a plain forward pass cost little."""


class EagerDecoder:
    """Decodes one token per call, on any device."""

    steps = 1
    reads_any_slot = False
    """Slots with gaps between them are gathered, which copies their keys and values each step."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner

    def weights_may_change(self) -> None:
        """Nothing to do: every step reads the model's own weights."""

    def prefill(self, chunks: Sequence[Chunk]) -> bool:
        """Always False: prefills are left to the model runner."""
        return False

    def decode(
        self, chunks: Sequence[Chunk], params: Sequence[Sequence[SampleParams]]
    ) -> DecodeResult:
        """Sample the token after each chunk of one token; ``params`` has ``steps`` per row."""
        return self.decode_constrained(chunks, params, {})

    def decode_constrained(
        self,
        chunks: Sequence[Chunk],
        params: Sequence[Sequence[SampleParams]],
        constraints: Mapping[int, Callable[[Sequence[int]], Sequence[int]]],
    ) -> DecodeResult:
        """The same with the rows of ``constraints`` restricted to the tokens that they return."""
        logits_BV = self._runner.append(chunks)
        for row, allow in constraints.items():
            logits_BV[row] = constrain(logits_BV[row], allow)
        return DecodeResult(sample(logits_BV, [first for first, *_ in params])[:, None])


class GraphDecoder:
    """Decodes several tokens per call from CUDA graphs, which are captured on first use of a size.

    On a CPU the same steps run without capture: slower than eager decoding, with the same tokens.
    """

    steps = GRAPH_STEPS

    def __init__(
        self, module: nn.Module, runner: ModelRunner, make_fused: Callable[[], FusedDecoder | None]
    ) -> None:
        self._module = module
        self._runner = runner
        self._fused = cache(make_fused)
        self._decode_graphs: dict[DecodeGraphSize, DecodeGraph] = {}
        self._prefill_graphs: dict[PrefillGraphSize, PrefillGraph] = {}
        self._pool: Any = None
        self._captured_state: tuple[object, ...] = ()
        self._weights: tuple[object, ...] | None = None

    def weights_may_change(self) -> None:
        """Look for changed weights at the next call, and not again until this is called again."""
        self._weights = None

    @property
    def reads_any_slot(self) -> bool:
        """Whether rows can be any slots and read tokens of others; if not, they are the first."""
        return self._fused() is not None

    def prefill(self, chunks: Sequence[Chunk]) -> bool:
        """Append few tokens to slots with fused kernels; False if that is not possible."""
        fused, count = self._fused(), sum(len(chunk.ids) for chunk in chunks)
        if fused is None or count > MAX_GRAPH_PREFILL:
            return False
        longest = max(chunk.start + len(chunk.ids) for chunk in chunks)
        length, prefixes = self._prepare(longest, chunks)
        length = _round_up(length, PREFILL_LENGTHS)
        columns = token_columns(chunks)
        for start in range(0, count, PREFILL_TOKENS[-1]):
            piece = [column[start : start + PREFILL_TOKENS[-1]] for column in columns]
            size = PrefillGraphSize(_round_up(len(piece[0]), PREFILL_TOKENS), length, prefixes)
            if size not in self._prefill_graphs:
                graph = PrefillGraph.capture(self._runner, fused, size, self._pool)
                self._prefill_graphs[size] = graph
            self._prefill_graphs[size].run(piece)
        return True

    def decode(
        self, chunks: Sequence[Chunk], params: Sequence[Sequence[SampleParams]]
    ) -> DecodeResult:
        """Decode ``GRAPH_STEPS`` tokens after each chunk of one token."""
        slots = [chunk.slot for chunk in chunks]
        assert self.reads_any_slot or slots == list(range(len(chunks)))
        rows = min(_round_up(len(chunks), ROWS), self._runner.slots)
        longest = max(chunk.start for chunk in chunks) + 1 + GRAPH_STEPS
        length, prefixes = self._prepare(longest, chunks)
        has_top_p = any(row[0].top_p < 1 for row in params)
        fused = self._fused()
        shared = [chunk.shared for chunk in chunks]
        tiles = [] if fused is None else shared_tiles(shared, fused.tile_size)
        size = DecodeGraphSize(rows, length, prefixes, has_top_p, has_shared=bool(tiles))
        if size not in self._decode_graphs:
            graph = DecodeGraph.capture(self._runner, fused, size, self._pool)
            self._decode_graphs[size] = graph
        graph = self._decode_graphs[size]
        graph.set_inputs(chunks, params, tiles)
        return graph.run(len(chunks), longest)

    def _prepare(self, longest: int, chunks: Sequence[Chunk]) -> tuple[int, tuple[PrefixRef, ...]]:
        """Length and prefixes of a graph; drops graphs of another state and refreshes weights."""
        length = min(_round_up(longest, LENGTHS), self._runner.context)
        self._runner.reserve(min(max(length, RESERVED_TOKENS), self._runner.context))
        prefixes = self._runner.round_prefixes([chunk.prefix for chunk in chunks], MIN_PREFIX)
        is_checked = self._weights is not None
        self._weights = self._weights or self._current_weights()
        state = (*self._weights, self._runner.cache.address, self._runner.prefix_kv.address)
        has_changed = self._captured_state != state
        if has_changed:
            self._decode_graphs.clear()
            self._prefill_graphs.clear()
            self._pool = self._new_pool()  # the old pool is freed with its last graph
            self._captured_state = state
            # A cache that has grown leaves blocks that are too small for the next allocation.
            torch.cuda.empty_cache()
        if (fused := self._fused()) is not None and (has_changed or not is_checked):
            fused.refresh_weights(force=has_changed)
        return length, prefixes

    def _new_pool(self) -> Any:
        is_gpu = next(self._module.parameters()).is_cuda
        return torch.cuda.graph_pool_handle() if is_gpu else None

    def _current_weights(self) -> tuple[object, ...]:
        """Active adapters and addresses of weights, on which captured graphs depend."""
        adapters = (
            tuple(self._module.active_adapters) if isinstance(self._module, PeftModel) else ()
        )
        return (*adapters, sum(weight.data_ptr() for weight in self._module.parameters()))


def make_decoder(
    module: nn.Module, runner: ModelRunner, *, graphs: bool
) -> EagerDecoder | GraphDecoder:
    """A graph decoder if wanted, unless weights are sharded: those have no fixed address."""
    is_sharded = any(isinstance(weight, DTensor) for weight in module.parameters())
    if not graphs or is_sharded:
        return EagerDecoder(runner)
    causal, device = causal_model(cast(PreTrainedModel, module)), next(module.parameters()).device
    is_gpu = device.type == "cuda"

    # Made on first use, since weights may be elsewhere when the sampler is created.
    def make_fused() -> FusedDecoder | None:
        return make_fused_decoder(causal, device, context=runner.context) if is_gpu else None

    return GraphDecoder(module, runner, make_fused)


def _round_up(count: int, sizes: Sequence[int]) -> int:
    """The smallest size that is at least ``count``; above the last one, a multiple of it."""
    if count <= sizes[-1]:
        return sizes[bisect_left(sizes, count)]
    return -(-count // sizes[-1]) * sizes[-1]
