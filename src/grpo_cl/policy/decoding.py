"""The next tokens of many replies: one pass for one token each, or on a GPU several from a graph.

Several steps of a graph run before the host looks at what was written, and more while it looks;
what a reply got after its end is thrown away.

Shapes: B replies, V vocabulary.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, cast

import torch
from peft import PeftModel
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from grpo_cl.policy.draws import Draw, draw
from grpo_cl.policy.graphs import STEPS, Graph, Round, Size
from grpo_cl.policy.lean import LeanStep, lean_step
from grpo_cl.policy.reader import Chunk, SlotReader
from grpo_cl.policy.reading import Reading, ReadingSize, columns_of
from grpo_cl.policy.scoring import causal_model
from grpo_cl.policy.trunks import LEAST, Place

ROWS = (1, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512)
LENGTHS = (256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288)
"""Sizes that graphs are made for; above the last one, its multiples."""
TOKENS = (32, 128, 512, 1024, 2048)
"""Tokens that a graph reads at once."""
READ_LENGTHS = (1024, 4096)
"""Lengths of rows for which such graphs are made; what a row does not have costs them little."""
FEW = 16384
"""Tokens that are read so at most: with more the launches of the model's own pass cost little."""
RESERVED = 1024
"""Tokens that every row has room for at least: a cache that grows is another, with other graphs."""


class EagerDecoder:
    """One token at a time, on any device."""

    steps = 1

    def __init__(self, reader: SlotReader) -> None:
        self._reader = reader

    def read(self, chunks: Sequence[Chunk]) -> bool:
        """Nothing is read here that the reader could not read as well."""
        return False

    def begin(self, chunks: Sequence[Chunk], draws: Sequence[Sequence[Draw]]) -> Round:
        """The token after each chunk, which has one; each row gives ``steps`` draws."""
        logits_BV = self._reader.read(chunks)
        return Round(draw(logits_BV, [first for first, *_ in draws])[:, None])


class GraphDecoder:
    """Several tokens at a time from CUDA graphs, made as sizes are met, one after another.

    On a CPU the same steps are run one by one: slower than need be, and the same tokens.
    """

    steps = STEPS

    def __init__(
        self, module: nn.Module, reader: SlotReader, lean: Callable[[], LeanStep | None]
    ) -> None:
        self._module = module
        self._reader = reader
        self._lean = cache(lean)
        self._graphs: dict[Size, Graph] = {}
        self._readings: dict[ReadingSize, Reading] = {}
        self._pool: Any = None
        self._stamp: tuple[object, ...] = ()

    def read(self, chunks: Sequence[Chunk]) -> bool:
        """Append few tokens to rows with fused kernels; whether that was done."""
        lean, count = self._lean(), sum(len(chunk.ids) for chunk in chunks)
        if lean is None or count > FEW:
            return False
        longest = max(chunk.start + len(chunk.ids) for chunk in chunks)
        length, places = self._prepared(longest, chunks)
        length = _fitting(length, READ_LENGTHS)
        columns = columns_of(chunks)
        for start in range(0, count, TOKENS[-1]):
            piece = [column[start : start + TOKENS[-1]] for column in columns]
            size = ReadingSize(_fitting(len(piece[0]), TOKENS), length, places)
            if size not in self._readings:
                self._readings[size] = Reading(self._reader, lean, size, self._pool)
            self._readings[size].run(piece)
        return True

    def begin(self, chunks: Sequence[Chunk], draws: Sequence[Sequence[Draw]]) -> Round:
        """``STEPS`` tokens for each of the rows 0 to B."""
        assert [chunk.row for chunk in chunks] == list(range(len(chunks)))
        rows = min(_fitting(len(chunks), ROWS), self._reader.slots)
        longest = max(chunk.start for chunk in chunks) + 1 + STEPS
        length, places = self._prepared(longest, chunks)
        size = Size(rows, length, places, is_cut=any(row[0].top_p < 1 for row in draws))
        if size not in self._graphs:
            self._graphs[size] = Graph(self._reader, self._lean(), size, self._pool)
        graph = self._graphs[size]
        graph.set(chunks, draws)
        return graph.run(len(chunks), longest)

    def _prepared(self, longest: int, chunks: Sequence[Chunk]) -> tuple[int, tuple[Place, ...]]:
        """A length and trunks that graphs are made for, with all that they take for granted."""
        length = min(_fitting(longest, LENGTHS), self._reader.context)
        self._reader.reserve(min(max(length, RESERVED), self._reader.context))
        places = self._reader.rounded([chunk.place for chunk in chunks], LEAST)
        is_other = self._stamp != (stamp := self._current())
        if is_other:
            self._graphs.clear()
            self._readings.clear()
            self._pool = self._new_pool()  # the old one went with the last graph that used it
            self._stamp = stamp
            # A cache that has grown leaves blocks behind that are too small for what comes next.
            torch.cuda.empty_cache()
        if (lean := self._lean()) is not None:
            lean.renew(anew=is_other)
        return length, places

    def _new_pool(self) -> Any:
        is_gpu = next(self._module.parameters()).is_cuda
        return torch.cuda.graph_pool_handle() if is_gpu else None

    def _current(self) -> tuple[object, ...]:
        """What a graph took for granted: where weights and cache are, which adapters act."""
        adapters = (
            tuple(self._module.active_adapters) if isinstance(self._module, PeftModel) else ()
        )
        weights = sum(weight.data_ptr() for weight in self._module.parameters())
        return (*adapters, weights, self._reader.cache.address, self._reader.trunks.address)


def make_decoder(
    module: nn.Module, reader: SlotReader, *, graphs: bool
) -> EagerDecoder | GraphDecoder:
    """Graphs where they are wanted, unless the weights are spread: those have no fixed place."""
    is_spread = any(isinstance(weight, DTensor) for weight in module.parameters())
    if not graphs or is_spread:
        return EagerDecoder(reader)
    causal, device = causal_model(cast(PreTrainedModel, module)), next(module.parameters()).device
    # Tried when it is first needed, as a sampler may be made while weights are elsewhere.
    is_gpu = device.type == "cuda"
    return GraphDecoder(module, reader, lambda: lean_step(causal, device) if is_gpu else None)


def _fitting(count: int, sizes: Sequence[int]) -> int:
    """The smallest size that holds ``count``."""
    if count <= sizes[-1]:
        return sizes[bisect_left(sizes, count)]
    return -(-count // sizes[-1]) * sizes[-1]
