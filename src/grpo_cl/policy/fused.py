"""Kernels of a decoding step, each in place of many small ones: on a GPU launching costs most.

They are written in Triton, which comes with PyTorch on CUDA; on a CPU they run with Triton's
interpreter (TRITON_INTERPRET=1). Triton's functions take pointers and strides, so shapes are named
at the functions that call them: B tokens, each of a row, H query heads, J key heads (each serves
G = H/J query heads), D width, K tokens of a row, L tokens of a trunk, S parts that are looked at by
themselves.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LEAST_PART, MOST_PART = 256, 1024
"""Tokens of a row that one program looks at: with more, a long row holds up the others."""
ENOUGH = 384
"""Programs that keep a GPU busy, about three for each of its multiprocessors."""
TRUNK_PART = 512
"""Tokens of a trunk that one program looks at."""
QUERIES = 64
"""Queries, of several rows and heads, that look at a trunk together."""
KEYS = 64
"""Keys that are held at once."""
LEAST_QUERIES = 16
"""The fewest that a matrix unit takes."""


def add_norm(
    hidden_BE: Tensor, added_BE: Tensor | None, weight_E: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The sum, and its root-mean-square norm times the weight."""
    rows, width = hidden_BE.shape
    normed_BE = torch.empty_like(hidden_BE)
    total_BE = hidden_BE if added_BE is None else torch.empty_like(hidden_BE)
    _add_norm[(rows,)](
        hidden_BE, hidden_BE if added_BE is None else added_BE, weight_E, total_BE, normed_BE,
        width, eps, HAS_ADDED=added_BE is not None, BLOCK=triton.next_power_of_2(width),
    )  # fmt: skip
    return total_BE, normed_BE


@triton.jit
def _add_norm(
    hidden, added, weight, total, normed, width, eps, HAS_ADDED: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * width
    place = tl.arange(0, BLOCK)
    is_in = place < width
    kind = total.dtype.element_ty
    wide = tl.load(hidden + row + place, is_in, 0.0).to(tl.float32)
    if HAS_ADDED:
        # Rounded wherever the model's own norm rounds.
        value = (wide + tl.load(added + row + place, is_in, 0.0).to(tl.float32)).to(kind)
        tl.store(total + row + place, value, is_in)
        wide = value.to(tl.float32)
    scaled = (wide / tl.sqrt(tl.sum(wide * wide) / width + eps)).to(kind).to(tl.float32)
    factor = tl.load(weight + place, is_in, 0.0).to(tl.float32)
    tl.store(normed + row + place, (scaled * factor).to(kind), is_in)


def gated(gate_BF: Tensor, up_BF: Tensor) -> Tensor:
    """SiLU of the gate times the other; either may be part of a wider tensor."""
    rows, width = gate_BF.shape
    found_BF = gate_BF.new_empty(rows, width)
    _gated[(rows, triton.cdiv(width, 1024))](
        gate_BF, up_BF, found_BF, width, gate_BF.stride(0), up_BF.stride(0), BLOCK=1024
    )
    return found_BF


@triton.jit
def _gated(gate, up, found, width, gate_stride, up_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_in = place < width
    kind = found.dtype.element_ty
    wide = tl.load(gate + row * gate_stride + place, is_in, 0.0).to(tl.float32)
    active = (wide * tl.sigmoid(wide)).to(kind).to(tl.float32)
    factor = tl.load(up + row * up_stride + place, is_in, 0.0).to(tl.float32)
    tl.store(found + row * width + place, (active * factor).to(kind), is_in)


def rotate_and_store(
    states: tuple[Tensor, Tensor, Tensor],
    turns: tuple[Tensor, Tensor],
    cache: tuple[Tensor, Tensor],
    where: tuple[Tensor, Tensor],
) -> Tensor:
    """The turned queries (B, H, D); turned keys and the values are written to the cache.

    ``states`` are queries, keys and values (B, H or J, D), each of which may be part of a wider
    tensor, ``turns`` cosines and sines (B, D), ``cache`` keys and values (rows, J, K, D), ``where``
    each new token's row and position.
    """
    query_BHD, key_BJD, _ = states
    rows, heads, width = query_BHD.shape
    turned_BHD, key_heads = query_BHD.new_empty(rows, heads, width), key_BJD.shape[1]
    keys, values = cache
    _rotate_and_store[(rows, heads + 2 * key_heads)](
        *states, turned_BHD, *turns, keys, values, *where,
        heads, key_heads, *(state.stride(0) for state in states),
        keys.stride(0), keys.stride(1), keys.stride(2),
        WIDTH=width, HALF=triton.next_power_of_2(width // 2),
    )  # fmt: skip
    return turned_BHD


@triton.jit
def _rotate_and_store(
    query, key, value, turned, cosines, sines, keys, values, rows, positions,
    heads, key_heads, query_stride, key_stride, value_stride,
    row_stride, head_stride, token_stride,
    WIDTH: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    batch, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    low = tl.arange(0, HALF)
    is_in = low < WIDTH // 2
    high = low + WIDTH // 2
    slot = tl.load(rows + batch) * row_stride + tl.load(positions + batch) * token_stride
    if head >= heads + key_heads:
        source = value + batch * value_stride + (head - heads - key_heads) * WIDTH
        target = values + slot + (head - heads - key_heads) * head_stride
        tl.store(target + low, tl.load(source + low, is_in, 0.0), is_in)
        tl.store(target + high, tl.load(source + high, is_in, 0.0), is_in)
    else:
        if head < heads:
            source = query + batch * query_stride + head * WIDTH
            target = turned + (batch * heads + head) * WIDTH
        else:
            source = key + batch * key_stride + (head - heads) * WIDTH
            target = keys + slot + (head - heads) * head_stride
        turn = batch * WIDTH
        first = tl.load(source + low, is_in, 0.0).to(tl.float32)
        second = tl.load(source + high, is_in, 0.0).to(tl.float32)
        # Cosines and sines of both halves are the same.
        cosine = tl.load(cosines + turn + low, is_in, 0.0).to(tl.float32)
        sine = tl.load(sines + turn + low, is_in, 0.0).to(tl.float32)
        kind = target.dtype.element_ty
        tl.store(target + low, (first * cosine - second * sine).to(kind), is_in)
        tl.store(target + high, (second * cosine + first * sine).to(kind), is_in)


class Looks:
    """What queries saw in parts, one after another, before they are joined."""

    def __init__(self, query_BHD: Tensor, count: int) -> None:
        rows, heads, width = query_BHD.shape
        self.query_BHD = query_BHD
        kind = torch.float32 if count > 1 else query_BHD.dtype  # one part is not joined
        self.output_SBHD = query_BHD.new_empty(count, rows, heads, width, dtype=kind)
        self.lse_SBH = query_BHD.new_empty(count, rows, heads, dtype=torch.float32)
        self._filled = 0

    def at_rows(
        self, cache: tuple[Tensor, Tensor], where: tuple[Tensor, Tensor], length: int
    ) -> None:
        """Look at rows of keys and values (rows, J, K, D).

        ``where`` is each query's row, and its position, up to which it looks.
        """
        keys, values = cache
        rows, heads, width = self.query_BHD.shape
        key_heads = keys.shape[1]
        group, part = heads // key_heads, part_of(rows * key_heads, length)
        parts = triton.cdiv(length, part)
        _at_rows[(rows, key_heads, parts)](
            self.query_BHD, keys, values, *where, *self._part(parts),
            group, part, keys.stride(0), keys.stride(1), keys.stride(2), width**-0.5,
            WIDTH=width, QUERIES=max(LEAST_QUERIES, triton.next_power_of_2(group)), KEYS=KEYS,
            FIXED=_fixed(part),
        )  # fmt: skip

    def at_trunk(self, trunk: tuple[Tensor, Tensor], seen_B: Tensor) -> None:
        """Look at a trunk's keys and values (J, L, D), each row at its first ``seen_B`` tokens."""
        keys, values = trunk
        rows, heads, width = self.query_BHD.shape
        key_heads, parts = keys.shape[0], triton.cdiv(keys.shape[1], TRUNK_PART)
        group = heads // key_heads
        _at_trunk[(triton.cdiv(rows * group, QUERIES), key_heads, parts)](
            self.query_BHD, keys, values, seen_B, *self._part(parts),
            rows, group, TRUNK_PART, keys.stride(0), keys.stride(1), width**-0.5,
            WIDTH=width, QUERIES=QUERIES, KEYS=KEYS, FIXED=_fixed(TRUNK_PART),
        )  # fmt: skip

    def joined(self) -> Tensor:
        """As if all had been seen with one look; (B, H, D)."""
        count, rows, heads, width = self.output_SBHD.shape
        if count == 1:
            return self.output_SBHD[0]
        found_BHD = torch.empty_like(self.query_BHD)
        _join[(rows, heads)](
            self.output_SBHD, self.lse_SBH, found_BHD, count, rows * heads,
            WIDTH=width, COUNT=triton.next_power_of_2(count),
        )  # fmt: skip
        return found_BHD

    def _part(self, count: int) -> tuple[Tensor, Tensor]:
        start, self._filled = self._filled, self._filled + count
        return self.output_SBHD[start:], self.lse_SBH[start:]


def part_of(programs: int, length: int) -> int:
    """Tokens of a part of a row, if ``programs`` look at each part: as many as leave enough."""
    part = LEAST_PART
    while part < min(length, MOST_PART) and programs * triton.cdiv(length, 2 * part) >= ENOUGH:
        part *= 2
    return part


def parts_of(programs: int, length: int, trunks: tuple[int, ...]) -> int:
    """How many parts a look at rows and trunks of these lengths has; as in ``part_of``."""
    own = triton.cdiv(length, part_of(programs, length))
    return own + sum(triton.cdiv(one, TRUNK_PART) for one in trunks)


def _fixed(part: int) -> int:
    """The length of a loop where it must be fixed: the interpreter takes none from a kernel."""
    return part if triton.knobs.runtime.interpret else 0


@triton.jit
def _look(
    query, keys, values, output, lse, number, is_in, seen, start, end, token_stride, scale,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, FIXED: tl.constexpr,
):  # fmt: skip
    """Write the output and the sum of some queries over the keys from ``start`` to ``end``."""
    width = tl.arange(0, WIDTH)
    place = number[:, None] * WIDTH + width[None, :]
    given = tl.load(query + place, is_in[:, None], 0.0)
    best = tl.full([QUERIES], -1e30, tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    found = tl.zeros([QUERIES, WIDTH], tl.float32)
    for first in range(0, FIXED if FIXED else end - start, KEYS):
        token = start + first + tl.arange(0, KEYS)
        is_there = token < end
        offset = token[:, None] * token_stride + width[None, :]
        key = tl.load(keys + offset, is_there[:, None], 0.0)
        score = tl.dot(given, tl.trans(key), input_precision="ieee") * scale
        score = tl.where(is_there[None, :] & (token[None, :] < seen[:, None]), score, -1e30)
        higher = tl.maximum(best, tl.max(score, 1))
        weight = tl.where(score > -1e29, tl.exp(score - higher[:, None]), 0.0)
        shrink = tl.exp(best - higher)
        value = tl.load(values + offset, is_there[:, None], 0.0)
        total = total * shrink + tl.sum(weight, 1)
        found = found * shrink[:, None]
        found += tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        best = higher
    some = tl.maximum(total, 1e-30)
    tl.store(output + place, (found / some[:, None]).to(output.dtype.element_ty), is_in[:, None])
    tl.store(lse + number, tl.where(total > 0, best + tl.log(some), -1e30), is_in)


@triton.jit
def _at_rows(
    query, keys, values, places, positions, output, lse,
    group, length, row_stride, head_stride, token_stride, scale,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, FIXED: tl.constexpr,
):  # fmt: skip
    row, head, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    rows, key_heads = tl.num_programs(0), tl.num_programs(1)
    one = tl.arange(0, QUERIES)
    seen = (tl.load(positions + row) + 1).to(tl.int32)
    base = tl.load(places + row) * row_stride + head * head_stride
    skipped = part.to(tl.int64) * rows * key_heads * group
    _look(
        query, keys + base, values + base, output + skipped * WIDTH, lse + skipped,
        (row * key_heads + head) * group + one, one < group, tl.zeros([QUERIES], tl.int32) + seen,
        part * length, tl.minimum(seen, (part + 1) * length),
        token_stride, scale, WIDTH, QUERIES, KEYS, FIXED,
    )  # fmt: skip


@triton.jit
def _at_trunk(
    query, keys, values, seen, output, lse,
    rows, group, length, head_stride, token_stride, scale,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, FIXED: tl.constexpr,
):  # fmt: skip
    head, part = tl.program_id(1), tl.program_id(2)
    key_heads = tl.num_programs(1)
    one = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    is_in = one < rows * group
    row = one // group
    number = ((row * key_heads + head) * group + one % group).to(tl.int64)
    limit = tl.load(seen + row, is_in, 0).to(tl.int32)
    base = head * head_stride
    skipped = part.to(tl.int64) * rows * key_heads * group
    _look(
        query, keys + base, values + base, output + skipped * WIDTH, lse + skipped,
        number, is_in, limit, part * length, tl.minimum(tl.max(limit), (part + 1) * length),
        token_stride, scale, WIDTH, QUERIES, KEYS, FIXED,
    )  # fmt: skip


@triton.jit
def _join(output, lse, found, count, stride, WIDTH: tl.constexpr, COUNT: tl.constexpr):
    number = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    part = tl.arange(0, COUNT)
    place = tl.arange(0, WIDTH)
    is_in = part < count
    sums = tl.load(lse + part * stride + number, is_in, -1e30)
    share = tl.exp(sums - tl.max(sums))
    offset = (part[:, None] * stride + number) * WIDTH + place[None, :]
    parts = tl.load(output + offset, is_in[:, None], 0.0)
    joined = tl.sum(parts * (share / tl.sum(share))[:, None], 0)
    tl.store(found + number * WIDTH + place, joined.to(found.dtype.element_ty))
