"""Split-KV decode attention over KV-cache rows and shared prefixes (flash decoding), in Triton.

The keys are divided into splits, which are attended to in parallel and merged by log-sum-exp (LSE).
Rows with the same first tokens attend to those together, so that they are read once (cascade
attention). Shapes: B tokens, each of a row, H query heads, J key heads (each serves G = H/J query
heads), D head dimension, K tokens of a row, L tokens of a prefix, M tiles of tokens, S splits.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from grpo_cl.policy.kernels.kv_cache import SharedTiles

MIN_SPLIT, MAX_SPLIT = 256, 1024
"""Keys of a row that one program attends to: with longer splits, a long row delays the others."""
MIN_PROGRAMS = 384
"""Programs that keep a GPU busy, about three for each of its multiprocessors."""
MIN_PREFIX_SPLIT, MAX_PREFIX_SPLIT = 512, 2048
"""Keys of a prefix that one program attends to."""
MIN_SHARED_SPLIT, MAX_SHARED_SPLIT = 256, 1024
"""Keys of a slot that one program attends to with the rows that share them."""
QUERIES = 64
"""Queries, of several tokens and heads, that one program attends with."""
KEYS = 64
"""Keys that a program holds at once."""
MIN_QUERIES = 16
"""Smallest tile of a tensor core's matrix product."""
MAX_WARP_NUMBERS = 2048
"""Numbers that one warp merges: a few partial results are merged faster than by four warps."""


class Tiles(NamedTuple):
    """Adjacent tokens of one row that attend to it together (query tiles)."""

    firsts_M: Tensor
    counts_M: Tensor
    """First token and number of tokens of each tile; some tiles may be empty."""
    size: int
    """Most tokens of a tile."""


def tile_size(group: int) -> int:
    """Tokens of a tile, if each has ``group`` queries for a key head; a power of two."""
    return max(1, triton.next_power_of_2(QUERIES // group + 1) // 2)


class SplitKVAttention:
    """Partial attention of queries over splits of the keys, to be merged at the end.

    The keys are rows of ``length`` tokens and shared prefixes of ``prefix_lengths``. With
    ``tiles``, the tokens of a tile attend to their row together; with ``shared``, the rows of a
    tile attend together to the first tokens that they share.
    """

    def __init__(
        self,
        query_BHD: Tensor,
        key_heads: int,
        length: int,
        prefix_lengths: tuple[int, ...] = (),
        tiles: Tiles | None = None,
        shared: SharedTiles | None = None,
    ) -> None:
        assert tiles is None or shared is None
        rows, heads, width = query_BHD.shape
        self.query_BHD = query_BHD
        self._key_heads, self._group = key_heads, heads // key_heads
        self._tiles, self._shared = tiles, shared
        self._length, self._num_tiles = length, rows if tiles is None else len(tiles.firsts_M)
        self._row_split = split_size(self._num_tiles * key_heads, length)
        self._blocks = triton.cdiv(rows * self._group, QUERIES)
        splits = [self._row_split, *map(self._prefix_split, prefix_lengths)]
        count = sum(map(triton.cdiv, (length, *prefix_lengths), splits))
        self._num_unshared, self._shared_split, self._shared_splits = count, 1, 0
        if shared is not None:
            programs = triton.cdiv(rows, tile_size(self._group)) * key_heads
            self._shared_split = split_size(programs, length, MIN_SHARED_SPLIT, MAX_SHARED_SPLIT)
            self._shared_splits = triton.cdiv(length, self._shared_split)
            count += self._shared_splits
        dtype = torch.float32 if count > 1 else query_BHD.dtype  # a single split is not merged
        self.output_SBHD = query_BHD.new_empty(count, rows, heads, width, dtype=dtype)
        self.lse_SBH = query_BHD.new_empty(count, rows, heads, dtype=torch.float32)
        self._filled = 0

    def attend_suffix(self, cache: tuple[Tensor, Tensor], where: tuple[Tensor, Tensor]) -> None:
        """Attend to rows of a KV cache, keys and values (rows, J, K, D).

        ``where`` is each query's row and position; it attends to positions up to its own.
        """
        keys, values = cache
        rows, _, width = self.query_BHD.shape
        splits, tiles = triton.cdiv(self._length, self._row_split), self._tiles
        strides = keys.stride(0), keys.stride(1), keys.stride(2)
        if self._shared is not None:
            self._attend_shared(self._shared, cache, where, splits, strides)
            return
        queries = self._group * (1 if tiles is None else tiles.size)
        # Without tiles the kernel does not read these pointers.
        bounds = where if tiles is None else (tiles.firsts_M, tiles.counts_M)
        _attend_suffix[(self._num_tiles, self._key_heads, splits)](
            self.query_BHD, keys, values, *where, *bounds, *self._next_splits(splits),
            rows, self._group, self._row_split, *strides, width**-0.5,
            IS_TILED=tiles is not None, WIDTH=width, QUERIES=_padded(queries), KEYS=KEYS,
            FIXED=_fixed_loop(self._row_split),
        )  # fmt: skip

    def attend_prefix(self, prefix: tuple[Tensor, Tensor], visible_B: Tensor) -> None:
        """Attend to a prefix, keys and values (J, L, D): each row to its first ``visible_B``."""
        keys, values = prefix
        rows, width = len(visible_B), self.query_BHD.shape[2]
        split = self._prefix_split(keys.shape[1])
        splits = triton.cdiv(keys.shape[1], split)
        _attend_prefix[(self._blocks, self._key_heads, splits)](
            self.query_BHD, keys, values, visible_B, *self._next_splits(splits),
            rows, self._group, split, keys.stride(0), keys.stride(1), width**-0.5,
            WIDTH=width, QUERIES=QUERIES, KEYS=KEYS, FIXED=_fixed_loop(split),
        )  # fmt: skip

    def merge(self) -> Tensor:
        """Attention over all keys, merged from the splits by LSE; (B, H, D)."""
        count, rows, heads, width = self.output_SBHD.shape
        if count == 1:
            return self.output_SBHD[0]
        merged_BHD, shared = torch.empty_like(self.query_BHD), self._shared
        padded = triton.next_power_of_2(count)
        _merge[(rows, heads)](
            self.output_SBHD, self.lse_SBH, merged_BHD,
            self.lse_SBH if shared is None else shared.lengths_B,  # not read without shared tokens
            self._num_unshared, self._shared_split, rows * heads,
            WIDTH=width, COUNT=padded, HAS_SHARED=shared is not None,
            num_warps=1 if padded * width <= MAX_WARP_NUMBERS else 4,
        )  # fmt: skip
        return merged_BHD

    def _attend_shared(
        self,
        shared: SharedTiles,
        cache: tuple[Tensor, Tensor],
        where: tuple[Tensor, Tensor],
        splits: int,
        strides: tuple[int, int, int],
    ) -> None:
        rows, _, width = self.query_BHD.shape
        programs = shared.num_tiles * self._shared_splits + rows * splits
        _attend_shared[(programs, self._key_heads)](
            self.query_BHD, *cache, *where, *shared[:5], *self._next_splits(splits),
            rows, self._group, shared.num_tiles, self._row_split,
            self._shared_split, self._shared_splits, self._num_unshared, *strides, width**-0.5,
            WIDTH=width, QUERIES=_padded(self._group), SHARED_QUERIES=QUERIES, KEYS=KEYS,
            FIXED=_fixed_loop(self._row_split), SHARED_FIXED=_fixed_loop(self._shared_split),
        )  # fmt: skip

    def _prefix_split(self, length: int) -> int:
        programs = self._blocks * self._key_heads
        return split_size(programs, length, MIN_PREFIX_SPLIT, MAX_PREFIX_SPLIT)

    def _next_splits(self, count: int) -> tuple[Tensor, Tensor]:
        start, self._filled = self._filled, self._filled + count
        return self.output_SBHD[start:], self.lse_SBH[start:]


def split_size(programs: int, length: int, least: int = MIN_SPLIT, most: int = MAX_SPLIT) -> int:
    """Keys of a split, with ``programs`` per split: as many as leave enough programs."""
    split = least
    while split < min(length, most) and programs * triton.cdiv(length, 2 * split) >= MIN_PROGRAMS:
        split *= 2
    return split


def _padded(queries: int) -> int:
    return max(MIN_QUERIES, triton.next_power_of_2(queries))


def _fixed_loop(split: int) -> int:
    """The loop's length in Triton's interpreter, which needs a constant; 0 for a dynamic loop."""
    return split if triton.knobs.runtime.interpret else 0


@triton.jit
def _attend(
    query, keys, values, output, lse, number, is_in, visible, start, end, token_stride, scale,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, FIXED: tl.constexpr,
):  # fmt: skip
    """Write output and LSE of some queries over the keys from ``start`` to ``end``."""
    column = tl.arange(0, WIDTH)
    place = number[:, None] * WIDTH + column[None, :]
    queries = tl.load(query + place, is_in[:, None], 0.0)
    best = tl.full([QUERIES], -1e30, tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    weighted = tl.zeros([QUERIES, WIDTH], tl.float32)
    for first in range(0, FIXED if FIXED else end - start, KEYS):
        token = start + first + tl.arange(0, KEYS)
        is_key = token < end
        offset = token[:, None] * token_stride + column[None, :]
        key = tl.load(keys + offset, is_key[:, None], 0.0)
        score = tl.dot(queries, tl.trans(key), input_precision="ieee") * scale
        score = tl.where(is_key[None, :] & (token[None, :] < visible[:, None]), score, -1e30)
        higher = tl.maximum(best, tl.max(score, 1))
        weight = tl.where(score > -1e29, tl.exp(score - higher[:, None]), 0.0)
        rescale = tl.exp(best - higher)
        value = tl.load(values + offset, is_key[:, None], 0.0)
        total = total * rescale + tl.sum(weight, 1)
        weighted = weighted * rescale[:, None]
        weighted += tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        best = higher
    positive = tl.maximum(total, 1e-30)
    result = (weighted / positive[:, None]).to(output.dtype.element_ty)
    tl.store(output + place, result, is_in[:, None])
    tl.store(lse + number, tl.where(total > 0, best + tl.log(positive), -1e30), is_in)


@triton.jit
def _attend_suffix(
    query, keys, values, slots, positions, firsts, counts,
    output, lse, rows, group, length, row_stride, head_stride, token_stride, scale,
    IS_TILED: tl.constexpr,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, FIXED: tl.constexpr,
):  # fmt: skip
    first, head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    key_heads = tl.num_programs(1)
    index = tl.arange(0, QUERIES)
    is_in = index < group
    token = tl.zeros([QUERIES], tl.int64) + first
    if IS_TILED:
        is_in = index < tl.load(counts + first) * group
        first = tl.load(firsts + first)
        token = first + index // group
    visible = (tl.load(positions + token, is_in, -1) + 1).to(tl.int32)
    base = tl.load(slots + first) * row_stride + head * head_stride
    skipped = split.to(tl.int64) * rows * key_heads * group
    _attend(
        query, keys + base, values + base, output + skipped * WIDTH, lse + skipped,
        (token * key_heads + head) * group + index % group, is_in, visible,
        split * length, tl.minimum(tl.max(visible), (split + 1) * length),
        token_stride, scale, WIDTH, QUERIES, KEYS, FIXED,
    )  # fmt: skip


@triton.jit
def _attend_shared(
    query, keys, values, slots, positions, lengths, members, firsts, counts, tile_slots,
    output, lse, rows, group, tiles, length, shared_length, shared_splits, num_unshared,
    row_stride, head_stride, token_stride, scale,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, SHARED_QUERIES: tl.constexpr, KEYS: tl.constexpr,
    FIXED: tl.constexpr, SHARED_FIXED: tl.constexpr,
):  # fmt: skip
    """First the tiles attend to their shared tokens, then each row to the tokens after them."""
    program, head = tl.program_id(0), tl.program_id(1)
    key_heads = tl.num_programs(1)
    tile_programs = tiles * shared_splits
    if program < tile_programs:
        _attend_tile(
            query, keys, values, lengths, members, firsts, counts, tile_slots, output, lse,
            program // shared_splits, head, key_heads, program % shared_splits, rows, group,
            shared_length, num_unshared, row_stride, head_stride, token_stride, scale,
            WIDTH, SHARED_QUERIES, KEYS, SHARED_FIXED,
        )  # fmt: skip
    else:
        _attend_row(
            query, keys, values, slots, positions, lengths, output, lse,
            (program - tile_programs) % rows, head, key_heads, (program - tile_programs) // rows,
            rows, group, length, row_stride, head_stride, token_stride, scale,
            WIDTH, QUERIES, KEYS, FIXED,
        )  # fmt: skip


@triton.jit
def _attend_tile(
    query, keys, values, lengths, members, firsts, counts, tile_slots, output, lse,
    tile, head, key_heads, split, rows, group, length, num_unshared,
    row_stride, head_stride, token_stride, scale,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, FIXED: tl.constexpr,
):  # fmt: skip
    index = tl.arange(0, QUERIES)
    is_in = index < tl.load(counts + tile) * group
    row = tl.load(members + tl.load(firsts + tile) + index // group, is_in, 0)
    # Empty tiles have no queries, and so no keys.
    visible = tl.load(lengths + row, is_in, 0).to(tl.int32)
    start = split * length
    end = tl.minimum(tl.max(visible), start + length)
    if start < end:
        base = tl.load(tile_slots + tile) * row_stride + head * head_stride
        skipped = (num_unshared + split).to(tl.int64) * rows * key_heads * group
        _attend(
            query, keys + base, values + base, output + skipped * WIDTH, lse + skipped,
            (row * key_heads + head) * group + index % group, is_in, visible, start, end,
            token_stride, scale, WIDTH, QUERIES, KEYS, FIXED,
        )  # fmt: skip


@triton.jit
def _attend_row(
    query, keys, values, slots, positions, lengths, output, lse,
    row, head, key_heads, split, rows, group, length, row_stride, head_stride, token_stride, scale,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, FIXED: tl.constexpr,
):  # fmt: skip
    index = tl.arange(0, QUERIES)
    end = (tl.load(positions + row) + 1).to(tl.int32)
    start = tl.load(lengths + row).to(tl.int32) + split * length
    base = tl.load(slots + row) * row_stride + head * head_stride
    skipped = split.to(tl.int64) * rows * key_heads * group
    _attend(
        query, keys + base, values + base, output + skipped * WIDTH, lse + skipped,
        (row.to(tl.int64) * key_heads + head) * group + index, index < group,
        tl.zeros([QUERIES], tl.int32) + end, start, tl.minimum(end, start + length),
        token_stride, scale, WIDTH, QUERIES, KEYS, FIXED,
    )  # fmt: skip


@triton.jit
def _attend_prefix(
    query, keys, values, visible, output, lse,
    rows, group, length, head_stride, token_stride, scale,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, FIXED: tl.constexpr,
):  # fmt: skip
    head, split = tl.program_id(1), tl.program_id(2)
    key_heads = tl.num_programs(1)
    index = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    is_in = index < rows * group
    row = index // group
    number = ((row * key_heads + head) * group + index % group).to(tl.int64)
    limit = tl.load(visible + row, is_in, 0).to(tl.int32)
    base = head * head_stride
    skipped = split.to(tl.int64) * rows * key_heads * group
    _attend(
        query, keys + base, values + base, output + skipped * WIDTH, lse + skipped,
        number, is_in, limit, split * length, tl.minimum(tl.max(limit), (split + 1) * length),
        token_stride, scale, WIDTH, QUERIES, KEYS, FIXED,
    )  # fmt: skip


@triton.jit
def _merge(
    output, lse, merged, shared_lengths, count, shared_split, stride,
    WIDTH: tl.constexpr, COUNT: tl.constexpr, HAS_SHARED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    number = row * tl.num_programs(1) + tl.program_id(1)
    split = tl.arange(0, COUNT)
    column = tl.arange(0, WIDTH)
    if HAS_SHARED:  # the last splits, of which each row has as many as its shared tokens fill
        count += tl.cdiv(tl.load(shared_lengths + row).to(tl.int32), shared_split)
    is_in = split < count
    split_lse = tl.load(lse + split * stride + number, is_in, -1e30)
    weight = tl.exp(split_lse - tl.max(split_lse))
    offset = (split[:, None] * stride + number) * WIDTH + column[None, :]
    partial = tl.load(output + offset, is_in[:, None], 0.0)
    total = tl.sum(partial * (weight / tl.sum(weight))[:, None], 0)
    tl.store(merged + number * WIDTH + column, total.to(merged.dtype.element_ty))
