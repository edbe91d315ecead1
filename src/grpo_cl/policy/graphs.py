"""CUDA graphs of a decoding step, each for a number of rows and a length.

A small model's step is hundreds of kernels of a few microseconds each, and launching them costs
more than running them. A graph launches all with one call, and feeds each token back by itself.

Shapes: B replies, S steps, V vocabulary.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grpo_cl.policy.draws import Draw, Drawn, draw_rows, drawn
from grpo_cl.policy.lean import LeanStep
from grpo_cl.policy.reader import Chunk, SlotReader
from grpo_cl.policy.slots import Span
from grpo_cl.policy.triton_here import kernels_of
from grpo_cl.policy.trunks import NOWHERE, Place, Used

STEPS = 8
"""Tokens that a graph writes before the host looks at them."""


class Round(NamedTuple):
    """Tokens on their way from the device."""

    pairs_BS2: Tensor
    """Each row's tokens and their log-probs; to be read when they have arrived."""
    arrival: Any = None
    """A CUDA event, where there is something to wait for."""
    graph: "Graph | None" = None
    end: int = 0
    """Tokens of the longest row after it."""

    def tokens(self) -> list[list[Drawn]]:
        """What each row got."""
        if self.arrival is not None:
            self.arrival.synchronize()
        return [drawn(row) for row in self.pairs_BS2.tolist()]

    @property
    def has_room(self) -> bool:
        """Whether more can follow before anybody has seen these: a graph alone has them by then."""
        return self.graph is not None and self.end + STEPS <= self.graph.length

    def follow(self, draws: Sequence[Sequence[Draw]]) -> "Round":
        """The tokens after these, for the same rows."""
        assert self.graph is not None
        self.graph.set_draws(draws)
        return self.graph.run(len(draws), self.end + STEPS)


class Size(NamedTuple):
    """What one graph is good for."""

    rows: int
    length: int
    places: tuple[Place, ...]
    """The trunks that are looked at, and how far."""
    is_cut: bool
    """Whether any row has a ``top_p``, for which the vocabulary is sorted."""


class _Inputs(NamedTuple):
    """Tensors at fixed places that a graph reads, and changes as it goes on."""

    step_1: Tensor
    rows_B: Tensor
    """Where keys and values are written; those of no reply go to a row of nobody's."""
    positions_B: Tensor
    tokens_B: Tensor
    trunks_B: Tensor
    reaches_B: Tensor
    """What each row goes on from."""
    temperatures_B1: Tensor
    top_ps_B1: Tensor
    numbers_SB1: Tensor

    @classmethod
    def make(cls, rows: int, device: torch.device) -> "_Inputs":
        def whole(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.long, device=device)

        def real(*shape: int) -> Tensor:
            return torch.ones(*shape, dtype=torch.double, device=device)

        return cls(
            step_1=whole(1),
            rows_B=whole(rows),
            positions_B=whole(rows),
            tokens_B=whole(rows),
            trunks_B=whole(rows),
            reaches_B=whole(rows),
            temperatures_B1=real(rows, 1),
            top_ps_B1=real(rows, 1),
            numbers_SB1=real(STEPS, rows, 1) / 2,
        )


class Graph:
    """One step of decoding for a number of rows and a length."""

    def __init__(self, reader: SlotReader, lean: LeanStep | None, size: Size, pool: Any) -> None:
        self._reader = reader
        self._lean = lean
        self._size = size
        device = reader.device
        self._inputs = _Inputs.make(self._size.rows, device)
        self._pairs_SB2 = torch.zeros(STEPS, size.rows, 2, dtype=torch.double, device=device)
        self._draws = kernels_of("fused_draws") if lean is not None else None
        self._inputs.rows_B.fill_(reader.slots)
        self._replay = captured(self._step, device, pool)

    @property
    def length(self) -> int:
        """Tokens that a row has room for."""
        return self._size.length

    def run(self, rows: int, end: int) -> Round:
        """The next tokens of the first rows."""
        for _ in range(STEPS):
            self._replay()
        # A copy, as the next tokens are written over these; in order, to be transferred as one.
        pairs_BS2 = (
            self._pairs_SB2[:, :rows].transpose(0, 1).clone(memory_format=torch.contiguous_format)
        )
        if not pairs_BS2.is_cuda:
            return Round(pairs_BS2, None, self, end)
        arriving_BS2 = torch.empty(pairs_BS2.shape, dtype=torch.double, pin_memory=True)
        arriving_BS2.copy_(pairs_BS2, non_blocking=True)
        arrival = torch.cuda.Event()
        arrival.record()
        return Round(arriving_BS2, arrival, self, end)

    def set(self, chunks: Sequence[Chunk], draws: Sequence[Sequence[Draw]]) -> None:
        """Have the chunks read next."""
        free = self._size.rows - len(chunks)
        nobody = self._reader.slots
        first = [row[0] for row in draws]
        given = self._inputs
        for tensor, value in (
            (given.rows_B, [*range(len(chunks)), *[nobody] * free]),
            (given.positions_B, [*(chunk.start for chunk in chunks), *[0] * free]),
            (given.tokens_B, [*(chunk.ids[0] for chunk in chunks), *[0] * free]),
            (given.trunks_B, [*(chunk.place.trunk for chunk in chunks), *[NOWHERE.trunk] * free]),
            (given.reaches_B, [*(chunk.place.length for chunk in chunks), *[0] * free]),
            (given.temperatures_B1, [*([one.temperature] for one in first), *[[0.0]] * free]),
            (given.top_ps_B1, [*([one.top_p] for one in first), *[[1.0]] * free]),
        ):
            tensor.copy_(torch.tensor(value, dtype=tensor.dtype))
        self.set_draws(draws)

    def set_draws(self, draws: Sequence[Sequence[Draw]]) -> None:
        """Have the next tokens drawn so; all else is as the last ones left it."""
        free = [[0.0]] * (self._size.rows - len(draws))
        numbers = [[*([row[step].number] for row in draws), *free] for step in range(STEPS)]
        self._inputs.numbers_SB1.copy_(torch.tensor(numbers, dtype=torch.double))
        self._inputs.step_1.zero_()

    def _step(self) -> None:
        given = self._inputs
        span = Span(
            rows=slice(0, self._size.rows),
            rows_N=given.rows_B,
            positions_N=given.positions_B,
            sources_N=None,
            num_rows=self._size.rows,
            length=self._size.length,
        )
        used = Used(self._reader.trunks, self._size.places, given.trunks_B, given.reaches_B)
        logits_BV = self._logits(span, used if self._size.places else None)
        pairs_B2 = self._pairs(logits_BV)
        self._pairs_SB2.index_copy_(0, given.step_1, pairs_B2[None])
        given.tokens_B.copy_(pairs_B2[:, 0])
        given.positions_B.add_(1).clamp_(max=self._size.length - 1)
        given.step_1.add_(1)

    def _logits(self, span: Span, used: Used | None) -> Tensor:
        reader, given = self._reader, self._inputs
        if self._lean is not None:
            return self._lean(reader.cache, span, given.tokens_B, used)
        tokens_B1, positions_B1 = given.tokens_B[:, None], given.positions_B[:, None]
        return reader.forward(reader.cache, span, tokens_B1, positions_B1, used)

    def _pairs(self, logits_BV: Tensor) -> Tensor:
        """Each row's token and its log-prob."""
        given = self._inputs
        numbers_B1 = given.numbers_SB1.index_select(0, given.step_1)[0]
        if self._draws is not None and not self._size.is_cut:
            return self._draws.draw_rows(logits_BV, numbers_B1, given.temperatures_B1)
        top_ps_B1 = given.top_ps_B1 if self._size.is_cut else None
        return draw_rows(logits_BV, numbers_B1, given.temperatures_B1, top_ps_B1)


def captured(step: Callable[[], None], device: torch.device, pool: Any) -> Callable[[], None]:
    """A CUDA graph of a step, which is run for it; on a CPU the step itself."""
    if device.type != "cuda":
        return step
    # Lazy initialisation happens before, on another stream.
    stream = _trial_stream(device)
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
def _trial_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all graphs: matrix products keep scratch space for each stream they ever ran on."""
    return torch.cuda.Stream(device)
