"""Looking at rows of a cache and at trunks, in parts that are joined.

As in ``fused``, the kernels are Triton's. Shapes: B tokens, each of a row, H query heads, J key
heads (each serves G = H/J query heads), D width, K tokens of a row, L tokens of a trunk, M tiles of
tokens, S parts that are looked at by themselves.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

LEAST_PART, MOST_PART = 256, 1024
"""Tokens of a row that one program looks at: with more, a long row holds up the others."""
ENOUGH = 384
"""Programs that keep a GPU busy, about three for each of its multiprocessors."""
LEAST_TRUNK_PART, MOST_TRUNK_PART = 512, 2048
"""Tokens of a trunk that one program looks at."""
QUERIES = 64
"""Queries, of several tokens and heads, that look at the same together."""
KEYS = 64
"""Keys that are held at once."""
LEAST_QUERIES = 16
"""The fewest that a matrix unit takes."""


class Tiles(NamedTuple):
    """Tokens of one row that stand together and look at it together."""

    firsts_M: Tensor
    counts_M: Tensor
    """Which of the tokens; some tiles may have none."""
    size: int
    """Most tokens of one."""


def tile_size(group: int) -> int:
    """Tokens of a tile, if each has ``group`` queries for a key head; a power of two."""
    return max(1, triton.next_power_of_2(QUERIES // group + 1) // 2)


class Looks:
    """What queries saw in parts, one after another, before they are joined.

    They look at rows of ``length`` tokens, tile by tile if there are any, and at ``trunks`` of
    these lengths.
    """

    def __init__(
        self,
        query_BHD: Tensor,
        key_heads: int,
        length: int,
        trunks: tuple[int, ...] = (),
        tiles: Tiles | None = None,
    ) -> None:
        rows, heads, width = query_BHD.shape
        self.query_BHD = query_BHD
        self._key_heads, self._group, self._tiles = key_heads, heads // key_heads, tiles
        self._length, self._num_looking = length, rows if tiles is None else len(tiles.firsts_M)
        self._row_part = part_of(self._num_looking * key_heads, length)
        self._blocks = triton.cdiv(rows * self._group, QUERIES)
        parts = [self._row_part, *map(self._trunk_part, trunks)]
        count = sum(map(triton.cdiv, (length, *trunks), parts))
        kind = torch.float32 if count > 1 else query_BHD.dtype  # one part is not joined
        self.output_SBHD = query_BHD.new_empty(count, rows, heads, width, dtype=kind)
        self.lse_SBH = query_BHD.new_empty(count, rows, heads, dtype=torch.float32)
        self._filled = 0

    def at_rows(self, cache: tuple[Tensor, Tensor], where: tuple[Tensor, Tensor]) -> None:
        """Look at rows of keys and values (rows, J, K, D).

        ``where`` is each query's row, and its position, up to which it looks.
        """
        keys, values = cache
        rows, _, width = self.query_BHD.shape
        parts, tiles = triton.cdiv(self._length, self._row_part), self._tiles
        together = self._group * (1 if tiles is None else tiles.size)
        chosen = where if tiles is None else (tiles.firsts_M, tiles.counts_M)  # any, if not used
        _at_rows[(self._num_looking, self._key_heads, parts)](
            self.query_BHD, keys, values, *where, *chosen, *self._part(parts),
            rows, self._group, self._row_part, keys.stride(0), keys.stride(1), keys.stride(2),
            width**-0.5, IS_TILED=tiles is not None, WIDTH=width,
            QUERIES=max(LEAST_QUERIES, triton.next_power_of_2(together)), KEYS=KEYS,
            FIXED=_fixed(self._row_part),
        )  # fmt: skip

    def at_trunk(self, trunk: tuple[Tensor, Tensor], seen_B: Tensor) -> None:
        """Look at a trunk's keys and values (J, L, D), each row at its first ``seen_B`` tokens."""
        keys, values = trunk
        rows, width = len(seen_B), self.query_BHD.shape[2]
        part = self._trunk_part(keys.shape[1])
        parts = triton.cdiv(keys.shape[1], part)
        _at_trunk[(self._blocks, self._key_heads, parts)](
            self.query_BHD, keys, values, seen_B, *self._part(parts),
            rows, self._group, part, keys.stride(0), keys.stride(1), width**-0.5,
            WIDTH=width, QUERIES=QUERIES, KEYS=KEYS, FIXED=_fixed(part),
        )  # fmt: skip

    def _trunk_part(self, length: int) -> int:
        programs = self._blocks * self._key_heads
        return part_of(programs, length, LEAST_TRUNK_PART, MOST_TRUNK_PART)

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


def part_of(programs: int, length: int, least: int = LEAST_PART, most: int = MOST_PART) -> int:
    """Tokens of a part, if ``programs`` look at each part: as many as leave enough programs."""
    part = least
    while part < min(length, most) and programs * triton.cdiv(length, 2 * part) >= ENOUGH:
        part *= 2
    return part


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
    query, keys, values, places, positions, firsts, counts, output, lse,
    rows, group, length, row_stride, head_stride, token_stride, scale,
    IS_TILED: tl.constexpr,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, FIXED: tl.constexpr,
):  # fmt: skip
    first, head, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    key_heads = tl.num_programs(1)
    one = tl.arange(0, QUERIES)
    is_in = one < group
    token = tl.zeros([QUERIES], tl.int64) + first
    if IS_TILED:
        is_in = one < tl.load(counts + first) * group
        first = tl.load(firsts + first)
        token = first + one // group
    seen = (tl.load(positions + token, is_in, -1) + 1).to(tl.int32)
    base = tl.load(places + first) * row_stride + head * head_stride
    skipped = part.to(tl.int64) * rows * key_heads * group
    _look(
        query, keys + base, values + base, output + skipped * WIDTH, lse + skipped,
        (token * key_heads + head) * group + one % group, is_in, seen,
        part * length, tl.minimum(tl.max(seen), (part + 1) * length),
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
