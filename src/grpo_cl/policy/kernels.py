"""Kernels of attention over runs of queries and keys, each with its own way back.

The way back of a kernel is right also where it is given the output and the sums of exponents of a
larger look, of which its runs are a part: a weight is exp(score - lse), and its gradient needs of
the output only the product with the output's gradient. The gradients of the parts then add up.

Shapes: Q and K queries and keys of all runs, T queries of one block, H query heads, J key heads
(each serves G = H/J query heads), D width.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grpo_cl.policy.packing import Runs
from grpo_cl.policy.triton_here import has_triton, kernels_of

WIDEST = 256
"""The widest head that PyTorch's flash attention takes."""
ALIGNED = 8
"""What it wants a width to be a multiple of."""
BLOCK = 256
"""Queries whose weights the plain kernel holds at once."""


class States(NamedTuple):
    """Queries, keys and values, or their gradients."""

    query_QHD: Tensor
    key_KJD: Tensor
    value_KJD: Tensor

    def at(self, runs: Runs) -> "States":
        """Those of some places of the row."""
        query_QHD, key_KJD, value_KJD = self
        return States(query_QHD[runs.queries], key_KJD[runs.keys], value_KJD[runs.keys])


class Seen(NamedTuple):
    """What queries got, and by what it was divided."""

    output_QHD: Tensor
    lse_HQ: Tensor
    """Logarithm of the sum of the exponents of a query's scores."""

    def at(self, places: slice) -> "Seen":
        """Those of some queries, at the place where they are."""
        return Seen(self.output_QHD[places], self.lse_HQ[:, places])


class Kernel(NamedTuple):
    """One way to compute attention; the last argument of both is the scale of the scores."""

    look: Callable[[States, Runs, float], Seen]
    look_back: Callable[[States, Seen, Tensor, Runs, float], States]
    """Gradients of what was given, from what was seen and the gradient of the output."""
    join: Callable[[Seen, Seen], None]
    """Makes of what queries saw what they would have seen with more in the same look."""


def kernel_for(states: States) -> Kernel:
    """The fastest kernel that takes such states."""
    query_QHD, _, value_KJD = states
    if query_QHD.shape[-1] != value_KJD.shape[-1]:
        return PLAIN
    if query_QHD.device.type == "cpu":
        return ONE_BY_ONE
    return FLASH if _has_flash(query_QHD) else PLAIN


def _has_flash(query: Tensor) -> bool:
    width, is_short = query.shape[-1], query.dtype in {torch.bfloat16, torch.float16}
    return query.is_cuda and is_short and width <= WIDEST and width % ALIGNED == 0


def _flash(states: States, runs: Runs, scale: float) -> Seen:
    output_QHD, lse_HQ, *_ = torch.ops.aten._flash_attention_forward(
        *states,
        *_flash_options(runs),
        False,  # noqa: FBT003  # no debug mask; the operator takes positions only
        scale=scale,
    )
    wanted = (output_QHD.shape[1], output_QHD.shape[0])
    assert lse_HQ.shape == wanted, f"PyTorch's sums have shape {lse_HQ.shape}, not {wanted}"
    return Seen(output_QHD, lse_HQ)


def _flash_back(states: States, seen: Seen, grad_QHD: Tensor, runs: Runs, scale: float) -> States:
    # The state of chance is read only where something is dropped.
    state = torch.empty(2, dtype=torch.uint64, device=grad_QHD.device)
    found = torch.ops.aten._flash_attention_backward(
        grad_QHD.contiguous(),
        *states,
        seen.output_QHD,
        seen.lse_HQ.contiguous(),
        *_flash_options(runs),
        state,
        torch.empty((), dtype=torch.uint64, device=grad_QHD.device),
        scale=scale,
    )
    return States(*found)


def _join_on_gpu(seen: Seen, more: Seen) -> None:
    if not has_triton():
        return _join(seen, more)
    return kernels_of("fused_layers").join_looks(*seen, *more)


def _flash_options(runs: Runs) -> tuple[Any, ...]:
    """Ends, longest runs, dropout, and whether the mask is causal."""
    queries, keys = runs.longest
    # Where no run has two queries the operator takes another kernel, which returns the sums of
    # heads that share keys in a wrong order.
    return runs.query_ends, runs.key_ends, max(queries, 2), keys, 0.0, runs.is_causal


def _one_by_one(states: States, runs: Runs, scale: float) -> Seen:
    """Flash attention of the CPU, which knows neither runs nor shared key heads."""
    given = _repeated(states)
    output_QHD = torch.empty_like(states.query_QHD)
    lse_HQ = _new_sums(states.query_QHD)
    for queries, keys in _spans(runs):
        output_1HTD, lse_1HT = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *_of_run(given, queries, keys), is_causal=runs.is_causal, scale=scale
        )
        output_QHD[queries] = output_1HTD[0].transpose(0, 1)
        lse_HQ[:, queries] = lse_1HT[0]
    return Seen(output_QHD, lse_HQ)


def _one_by_one_back(
    states: States, seen: Seen, grad_QHD: Tensor, runs: Runs, scale: float
) -> States:
    given = _repeated(states)
    found = States(*map(torch.empty_like, given))
    for queries, keys in _spans(runs):
        grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            _of_heads(grad_QHD[queries]),
            *_of_run(given, queries, keys),
            _of_heads(seen.output_QHD[queries]),
            seen.lse_HQ[None, :, queries],
            0.0,
            runs.is_causal,
            scale=scale,
        )
        for total, grad_1HTD, places in zip(found, grads, (queries, keys, keys), strict=True):
            total[places] = grad_1HTD[0].transpose(0, 1)
    heads = states.key_KJD.shape[1]
    to_keys = (grad_KHD.unflatten(1, (heads, -1)).sum(2) for grad_KHD in found[1:])
    return States(found.query_QHD, *to_keys)


def _join(seen: Seen, more: Seen) -> None:
    lse_HQ = torch.logaddexp(seen.lse_HQ, more.lse_HQ)
    output_QHD = seen.output_QHD * _share(seen, lse_HQ)
    output_QHD += more.output_QHD * _share(more, lse_HQ)
    seen.output_QHD.copy_(output_QHD)
    seen.lse_HQ.copy_(lse_HQ)


def _share(part: Seen, lse_HQ: Tensor) -> Tensor:
    return (part.lse_HQ - lse_HQ).exp().transpose(0, 1)[..., None]


def _repeated(states: States) -> States:
    """With a key head for every query head."""
    query_QHD, *others = states
    count = query_QHD.shape[1] // states.key_KJD.shape[1]
    return States(query_QHD, *(state.repeat_interleave(count, 1) for state in others))


def _of_run(states: States, queries: slice, keys: slice) -> tuple[Tensor, ...]:
    query_QHD, key_KHD, value_KHD = states
    return tuple(map(_of_heads, (query_QHD[queries], key_KHD[keys], value_KHD[keys])))


def _of_heads(state_THD: Tensor) -> Tensor:
    return state_THD.transpose(0, 1)[None]


def _spans(runs: Runs) -> Iterator[tuple[slice, slice]]:
    """Where the queries and the keys of each run are."""
    sides = (pairwise(ends.tolist()) for ends in (runs.query_ends, runs.key_ends))
    for queries, keys in zip(*sides, strict=True):
        yield slice(*queries), slice(*keys)


def _new_sums(query_QHD: Tensor) -> Tensor:
    count, heads, _ = query_QHD.shape
    return query_QHD.new_empty((heads, count), dtype=_precise(query_QHD))


def _precise(state: Tensor) -> torch.dtype:
    return torch.promote_types(state.dtype, torch.float32)


class _Block(NamedTuple):
    """Some queries of a run, and the keys they look at."""

    queries: slice
    keys: slice
    is_causal: bool

    def group(self, state_QHD: Tensor, key_heads: int) -> Tensor:
        """Queries, or what has their shape, by the key head that they share; (J, G·T, D)."""
        state_TJGD = state_QHD[self.queries].unflatten(1, (key_heads, -1))
        return state_TJGD.permute(1, 2, 0, 3).flatten(1, 2)

    def ungroup(self, found: Tensor, target_QHD: Tensor) -> None:
        """Write what was found for the groups to its places."""
        target_TJGD = target_QHD[self.queries].unflatten(1, (len(found), -1))
        target_TJGD.copy_(found.unflatten(1, (-1, len(target_TJGD))).permute(2, 0, 1, 3))

    def scores(self, query: Tensor, key_JKD: Tensor, scale: float) -> Tensor:
        """Of grouped queries, -∞ where one may not look; (J, G·T, keys)."""
        scores = (query * scale) @ key_JKD[:, self.keys].mT
        if self.is_causal:
            count = self.queries.stop - self.queries.start
            later_TT = torch.ones(count, count, dtype=torch.bool, device=query.device).triu(1)
            scores.unflatten(1, (-1, count))[..., -count:].masked_fill_(later_TT, -torch.inf)
        return scores


def _plain(states: States, runs: Runs, scale: float) -> Seen:
    """Matrix products, in float32 at least."""
    query_QHD, key_JKD, value_JKD = _by_key_head(states)
    output_QHD = states.query_QHD.new_empty(*query_QHD.shape[:2], value_JKD.shape[-1])
    lse_HQ = _new_sums(query_QHD)
    for block in _blocks(runs):
        query = block.group(query_QHD, len(key_JKD))
        scores = block.scores(query, key_JKD, scale)
        lse = scores.logsumexp(-1, keepdim=True)
        block.ungroup(scores.sub_(lse).exp_() @ value_JKD[:, block.keys], output_QHD)
        lse_HQ[:, block.queries] = lse.view(len(lse_HQ), -1)
    return Seen(output_QHD, lse_HQ)


def _plain_back(states: States, seen: Seen, grad_QHD: Tensor, runs: Runs, scale: float) -> States:
    query_QHD, key_JKD, value_JKD = _by_key_head(states)
    grad_QHD = grad_QHD.to(query_QHD.dtype)
    mean_HQ = (grad_QHD * seen.output_QHD).sum(-1).transpose(0, 1)
    to_query_QHD = torch.empty_like(query_QHD)
    to_key_JKD, to_value_JKD = torch.zeros_like(key_JKD), torch.zeros_like(value_JKD)
    for block in _blocks(runs):
        query, grad = (block.group(state, len(key_JKD)) for state in (query_QHD, grad_QHD))
        lse, mean = (
            one[:, block.queries].reshape(*query.shape[:2], 1) for one in (seen.lse_HQ, mean_HQ)
        )
        weights = block.scores(query, key_JKD, scale).sub_(lse).exp_()
        to_scores = grad @ value_JKD[:, block.keys].mT
        to_scores = to_scores.sub_(mean).mul_(weights).mul_(scale)
        block.ungroup(to_scores @ key_JKD[:, block.keys], to_query_QHD)
        to_key_JKD[:, block.keys] += to_scores.mT @ query
        to_value_JKD[:, block.keys] += weights.mT @ grad
    found = to_query_QHD, to_key_JKD.transpose(0, 1), to_value_JKD.transpose(0, 1)
    return States(*(grad.to(states.query_QHD.dtype) for grad in found))


def _by_key_head(states: States) -> tuple[Tensor, Tensor, Tensor]:
    dtype = _precise(states.query_QHD)
    query_QHD, key_KJD, value_KJD = (state.to(dtype) for state in states)
    return query_QHD, key_KJD.transpose(0, 1), value_KJD.transpose(0, 1)


def _blocks(runs: Runs) -> Iterator[_Block]:
    for queries, keys in _spans(runs):
        for start in range(queries.start, queries.stop, BLOCK):
            end = min(start + BLOCK, queries.stop)
            last = end if runs.is_causal else keys.stop
            yield _Block(slice(start, end), slice(keys.start, last), runs.is_causal)


FLASH = Kernel(_flash, _flash_back, _join_on_gpu)
"""All runs in one call."""
ONE_BY_ONE = Kernel(_one_by_one, _one_by_one_back, _join)
"""A call for each run, on a CPU."""
PLAIN = Kernel(_plain, _plain_back, _join)
"""Some queries after others, on any device and in any precision."""
