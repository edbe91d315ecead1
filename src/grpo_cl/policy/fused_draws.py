"""Drawing tokens with two kernels in place of a dozen; what ``draws`` draws where nothing is cut.

The vocabulary is read in blocks: first the largest logit and the sum of exponents of each, all at
once, then the one block in which a row's token lies. As in ``fused``, the kernels are Triton's.

Shapes: B replies, V vocabulary, C blocks of it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
"""Logits that one program looks at."""


def draw_rows(logits_BV: Tensor, numbers_B1: Tensor, temperatures_B1: Tensor) -> Tensor:
    """Each row's token and its log-prob, of float64.

    A sum of exponents is that of float32 within a block: a number that comes within 1e-6 of a
    boundary between two tokens may draw the other one than ``draws.draw_rows``.
    """
    rows, vocabulary = logits_BV.shape
    count = triton.cdiv(vocabulary, BLOCK)
    highest_BC = logits_BV.new_empty(rows, count, dtype=torch.float32)
    sums_BC, pairs_B2 = torch.empty_like(highest_BC), numbers_B1.new_empty(rows, 2)
    given = logits_BV.contiguous(), temperatures_B1.contiguous(), vocabulary
    _sum_blocks[(rows, count)](*given, highest_BC, sums_BC, BLOCK=BLOCK)
    _draw[(rows,)](
        *given, highest_BC, sums_BC, numbers_B1.contiguous(), pairs_B2, count,
        COUNT=triton.next_power_of_2(count), BLOCK=BLOCK, num_warps=8,  # few programs
    )  # fmt: skip
    return pairs_B2


@triton.jit
def _scaled(logits, temperature, start, vocabulary, BLOCK: tl.constexpr):
    """A block of a row's logits, over the temperature if there is one."""
    place = start + tl.arange(0, BLOCK)
    wide = tl.load(logits + place, place < vocabulary, float("-inf")).to(tl.float32)
    return wide / tl.where(temperature == 0, 1.0, temperature).to(tl.float32)


@triton.jit
def _finite(highest):
    """What to subtract from logits: not -inf, where they all are, as the difference were NaN."""
    return tl.where(highest > float("-inf"), highest, 0.0)


@triton.jit
def _sum_blocks(logits, temperatures, vocabulary, highest, sums, BLOCK: tl.constexpr):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(temperatures + row)
    value = _scaled(logits + row * vocabulary, temperature, block * BLOCK, vocabulary, BLOCK)
    best = tl.max(value)
    number = row * tl.num_programs(1) + block
    tl.store(highest + number, best)
    tl.store(sums + number, tl.sum(tl.exp(value - _finite(best))))


@triton.jit
def _draw(
    logits, temperatures, vocabulary, highest, sums, numbers, pairs, count,
    COUNT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + row)
    is_greedy = temperature == 0
    one = tl.arange(0, COUNT)
    tops = tl.load(highest + row * count + one, one < count, float("-inf"))
    best = tl.max(tops)
    part = tl.load(sums + row * count + one, one < count, 0.0).to(tl.float64)
    part *= tl.exp((tops - _finite(best)).to(tl.float64))
    total = tl.sum(part)
    target = tl.load(numbers + row) * total
    is_it = tl.where(is_greedy, tops == best, tl.cumsum(part) > target)
    block = _first(is_it, part > 0, one, COUNT)
    before = tl.sum(tl.where(one < block, part, 0.0))

    start = block * BLOCK
    value = _scaled(logits + row * vocabulary, temperature, start, vocabulary, BLOCK)
    top = _finite(tl.load(highest + row * count + block))
    rest = (target - before) / tl.exp((top - _finite(best)).to(tl.float64))
    weight = tl.exp(value - top)
    is_it = tl.where(is_greedy, value == best, tl.cumsum(weight.to(tl.float64)) > rest)
    place = tl.arange(0, BLOCK)
    chosen = _first(is_it, weight > 0, place, BLOCK)
    picked = tl.sum(tl.where(place == chosen, value, 0.0)).to(tl.float64)
    # The total of logits that are not numbers, or of no likely one, is such that this is NaN.
    logprob = picked - (_finite(best).to(tl.float64) + tl.log(total))
    tl.store(pairs + 2 * row, (start + chosen).to(tl.float64))
    tl.store(pairs + 2 * row + 1, logprob)


@triton.jit
def _first(is_it, is_likely, place, COUNT: tl.constexpr):
    """The first that is it and has probability, else the last that has, else 0.

    Sums of many are not added up from left to right: rounding may leave none that passes a number,
    or let one without probability be the first. What lies past the end has none either.
    """
    first = tl.min(tl.where(is_it & is_likely, place, COUNT))
    return tl.where(first < COUNT, first, tl.max(tl.where(is_likely, place, 0)))
