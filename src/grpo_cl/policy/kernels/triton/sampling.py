"""Token sampling with two Triton kernels instead of a dozen; as ``token_sampling`` without top-p.

The vocabulary is read in blocks: first the largest logit and the sum of exponents of every block,
in parallel, then the one block that contains a row's token.

Shapes: B replies, V vocabulary, C blocks of it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
"""Logits that one program reads."""


def sample_rows(logits_BV: Tensor, uniforms_B1: Tensor, temperatures_B1: Tensor) -> Tensor:
    """Each row's token and its log-prob, in float64.

    Within a block, exponents are summed in float32: a uniform number within 1e-6 of the boundary
    between two tokens may select the other token than ``token_sampling.sample_rows``.
    """
    rows, vocabulary = logits_BV.shape
    count = triton.cdiv(vocabulary, BLOCK)
    highest_BC = logits_BV.new_empty(rows, count, dtype=torch.float32)
    sums_BC, pairs_B2 = torch.empty_like(highest_BC), uniforms_B1.new_empty(rows, 2)
    inputs = logits_BV.contiguous(), temperatures_B1.contiguous(), vocabulary
    _sum_blocks[(rows, count)](*inputs, highest_BC, sums_BC, BLOCK=BLOCK)
    _sample[(rows,)](
        *inputs, highest_BC, sums_BC, uniforms_B1.contiguous(), pairs_B2, count,
        COUNT=triton.next_power_of_2(count), BLOCK=BLOCK, num_warps=8,  # few programs
    )  # fmt: skip
    return pairs_B2


@triton.jit
def _scaled(logits, temperature, start, vocabulary, BLOCK: tl.constexpr):
    """A block of a row's logits, divided by the temperature if it is not 0."""
    token = start + tl.arange(0, BLOCK)
    value = tl.load(logits + token, token < vocabulary, float("-inf")).to(tl.float32)
    return value / tl.where(temperature == 0, 1.0, temperature).to(tl.float32)


@triton.jit
def _finite(highest):
    """The shift of the logits: 0 instead of -inf, whose difference to -inf would be NaN."""
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
def _sample(
    logits, temperatures, vocabulary, highest, sums, uniforms, pairs, count,
    COUNT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + row)
    is_greedy = temperature == 0
    index = tl.arange(0, COUNT)
    tops = tl.load(highest + row * count + index, index < count, float("-inf"))
    best = tl.max(tops)
    mass = tl.load(sums + row * count + index, index < count, 0.0).to(tl.float64)
    mass *= tl.exp((tops - _finite(best)).to(tl.float64))
    total = tl.sum(mass)
    target = tl.load(uniforms + row) * total
    is_selected = tl.where(is_greedy, tops == best, tl.cumsum(mass) > target)
    block = _first(is_selected, mass > 0, index, COUNT)
    before = tl.sum(tl.where(index < block, mass, 0.0))

    start = block * BLOCK
    value = _scaled(logits + row * vocabulary, temperature, start, vocabulary, BLOCK)
    top = _finite(tl.load(highest + row * count + block))
    rest = (target - before) / tl.exp((top - _finite(best)).to(tl.float64))
    weight = tl.exp(value - top)
    is_selected = tl.where(is_greedy, value == best, tl.cumsum(weight.to(tl.float64)) > rest)
    offset = tl.arange(0, BLOCK)
    token = _first(is_selected, weight > 0, offset, BLOCK)
    logit = tl.sum(tl.where(offset == token, value, 0.0)).to(tl.float64)
    # NaN if any logit is NaN, or if all are -inf.
    logprob = logit - (_finite(best).to(tl.float64) + tl.log(total))
    tl.store(pairs + 2 * row, (start + token).to(tl.float64))
    tl.store(pairs + 2 * row + 1, logprob)


@triton.jit
def _first(is_selected, is_likely, index, COUNT: tl.constexpr):
    """The first index that is selected and has probability, else the last with any, else 0.

    A parallel cumulative sum is not added from left to right: rounding may leave no index above
    the target, or put one without probability first. Indices past the end have none either.
    """
    first = tl.min(tl.where(is_selected & is_likely, index, COUNT))
    return tl.where(first < COUNT, first, tl.max(tl.where(is_likely, index, 0)))
