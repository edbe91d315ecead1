"""Varlen attention, forward and backward, returning the log-sum-exp (LSE) of the scores.

Three implementations of one interface: ``FLASH`` (FlashAttention on a GPU), ``CPU_SDPA`` (PyTorch's
flash attention for CPUs) and ``REFERENCE`` (matrix products, any device and dtype).

A backward pass is also correct if output and LSE come from attention over more keys than the ones
given: a weight is exp(score - lse), and its gradient needs only the dot product of the output and
the output's gradient. So attention over a prefix and over a suffix can be merged by LSE, and the
gradients of the two calls add up.

Shapes: Q and K queries and keys of all segments, T queries of one block, H query heads, J key heads
(each serves G = H/J query heads), D head dimension.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grpo_cl.policy.kernels.packing import VarlenSegments
from grpo_cl.policy.kernels.triton_support import has_triton, load_kernels

MAX_FLASH_DIM = 256
"""Largest head dimension of PyTorch's FlashAttention."""
FLASH_ALIGNMENT = 8
"""Head dimensions that it supports are multiples of this."""
BLOCK = 256
"""Queries whose scores the reference kernel holds at once."""


class States(NamedTuple):
    """Queries, keys and values, or their gradients."""

    query_QHD: Tensor
    key_KJD: Tensor
    value_KJD: Tensor

    def at(self, segments: VarlenSegments) -> "States":
        """Views of the queries, keys and values of some segments."""
        query_QHD, key_KJD, value_KJD = self
        return States(query_QHD[segments.queries], key_KJD[segments.keys], value_KJD[segments.keys])


class AttentionState(NamedTuple):
    """Attention output and log-sum-exp of the scores, as needed to merge partial attention."""

    output_QHD: Tensor
    lse_HQ: Tensor

    def at(self, queries: slice) -> "AttentionState":
        """Views of the output and LSE of some queries."""
        return AttentionState(self.output_QHD[queries], self.lse_HQ[:, queries])


class VarlenKernel(NamedTuple):
    """One implementation; the last argument of ``forward`` and ``backward`` scales the scores."""

    forward: Callable[[States, VarlenSegments, float], AttentionState]
    backward: Callable[[States, AttentionState, Tensor, VarlenSegments, float], States]
    """Gradients of the states, from the forward result and the gradient of the output."""
    merge_states: Callable[[AttentionState, AttentionState], None]
    """Merges the second state into the first by LSE, as if all keys had been in one call."""


def select_kernel(states: States) -> VarlenKernel:
    """The fastest kernel that supports the states."""
    query_QHD, _, value_KJD = states
    if query_QHD.shape[-1] != value_KJD.shape[-1]:
        return REFERENCE
    if query_QHD.device.type == "cpu":
        return CPU_SDPA
    return FLASH if _has_flash(query_QHD) else REFERENCE


def _has_flash(query: Tensor) -> bool:
    width, is_half = query.shape[-1], query.dtype in {torch.bfloat16, torch.float16}
    return query.is_cuda and is_half and width <= MAX_FLASH_DIM and width % FLASH_ALIGNMENT == 0


# FLASH: all segments in one call.


def _flash_forward(states: States, segments: VarlenSegments, scale: float) -> AttentionState:
    output_QHD, lse_HQ, *_ = torch.ops.aten._flash_attention_forward(
        *states,
        *_flash_arguments(segments),
        False,  # noqa: FBT003  # no debug mask; the operator takes positions only
        scale=scale,
    )
    expected = (output_QHD.shape[1], output_QHD.shape[0])
    assert lse_HQ.shape == expected, f"PyTorch's LSE has shape {lse_HQ.shape}, not {expected}"
    return AttentionState(output_QHD, lse_HQ)


def _flash_backward(
    states: States, state: AttentionState, grad_QHD: Tensor, segments: VarlenSegments, scale: float
) -> States:
    # The RNG state is read only if there is dropout.
    rng_state = torch.empty(2, dtype=torch.uint64, device=grad_QHD.device)
    grads = torch.ops.aten._flash_attention_backward(
        grad_QHD.contiguous(),
        *states,
        state.output_QHD,
        state.lse_HQ.contiguous(),
        *_flash_arguments(segments),
        rng_state,
        torch.empty((), dtype=torch.uint64, device=grad_QHD.device),
        scale=scale,
    )
    return States(*grads)


def _flash_arguments(segments: VarlenSegments) -> tuple[Any, ...]:
    """Cumulative and maximal lengths, dropout, and whether attention is causal."""
    max_q, max_k = segments.max_seqlens
    # With max_q = 1 the operator dispatches to a kernel that returns the LSE of grouped query
    # heads in a wrong order.
    return (
        segments.cu_seqlens_q,
        segments.cu_seqlens_k,
        max(max_q, 2),
        max_k,
        0.0,
        segments.is_causal,
    )


def _merge_on_gpu(state: AttentionState, other: AttentionState) -> None:
    if not has_triton():
        return _merge_states(state, other)
    return load_kernels("blocks").merge_states(*state, *other)


def _merge_states(state: AttentionState, other: AttentionState) -> None:
    lse_HQ = torch.logaddexp(state.lse_HQ, other.lse_HQ)
    output_QHD = state.output_QHD * _merge_weight(state, lse_HQ)
    output_QHD += other.output_QHD * _merge_weight(other, lse_HQ)
    state.output_QHD.copy_(output_QHD)
    state.lse_HQ.copy_(lse_HQ)


def _merge_weight(state: AttentionState, lse_HQ: Tensor) -> Tensor:
    return (state.lse_HQ - lse_HQ).exp().transpose(0, 1)[..., None]


# CPU_SDPA: one call per segment, with keys and values repeated for grouped query heads.


def _cpu_forward(states: States, segments: VarlenSegments, scale: float) -> AttentionState:
    repeated = _repeat_kv(states)
    output_QHD = torch.empty_like(states.query_QHD)
    lse_HQ = _empty_lse(states.query_QHD)
    for queries, keys in _segment_slices(segments):
        output_1HTD, lse_1HT = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *_segment_states(repeated, queries, keys), is_causal=segments.is_causal, scale=scale
        )
        output_QHD[queries] = output_1HTD[0].transpose(0, 1)
        lse_HQ[:, queries] = lse_1HT[0]
    return AttentionState(output_QHD, lse_HQ)


def _cpu_backward(
    states: States, state: AttentionState, grad_QHD: Tensor, segments: VarlenSegments, scale: float
) -> States:
    repeated = _repeat_kv(states)
    grads = States(*map(torch.empty_like, repeated))
    for queries, keys in _segment_slices(segments):
        segment_grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            _heads_first(grad_QHD[queries]),
            *_segment_states(repeated, queries, keys),
            _heads_first(state.output_QHD[queries]),
            state.lse_HQ[None, :, queries],
            0.0,
            segments.is_causal,
            scale=scale,
        )
        for target, grad_1HTD, place in zip(
            grads, segment_grads, (queries, keys, keys), strict=True
        ):
            target[place] = grad_1HTD[0].transpose(0, 1)
    key_heads = states.key_KJD.shape[1]
    grads_kv = (grad_KHD.unflatten(1, (key_heads, -1)).sum(2) for grad_KHD in grads[1:])
    return States(grads.query_QHD, *grads_kv)


def _repeat_kv(states: States) -> States:
    """The states with one key head for every query head."""
    query_QHD, *kv = states
    group = query_QHD.shape[1] // states.key_KJD.shape[1]
    return States(query_QHD, *(state.repeat_interleave(group, 1) for state in kv))


def _segment_states(states: States, queries: slice, keys: slice) -> tuple[Tensor, ...]:
    query_QHD, key_KHD, value_KHD = states
    return tuple(map(_heads_first, (query_QHD[queries], key_KHD[keys], value_KHD[keys])))


def _heads_first(state_THD: Tensor) -> Tensor:
    return state_THD.transpose(0, 1)[None]


def _segment_slices(segments: VarlenSegments) -> Iterator[tuple[slice, slice]]:
    """The slices of queries and keys of each segment."""
    bounds = (pairwise(ends.tolist()) for ends in (segments.cu_seqlens_q, segments.cu_seqlens_k))
    for queries, keys in zip(*bounds, strict=True):
        yield slice(*queries), slice(*keys)


def _empty_lse(query_QHD: Tensor) -> Tensor:
    count, heads, _ = query_QHD.shape
    return query_QHD.new_empty((heads, count), dtype=_at_least_float32(query_QHD))


def _at_least_float32(state: Tensor) -> torch.dtype:
    return torch.promote_types(state.dtype, torch.float32)


# REFERENCE: matrix products over blocks of queries, in float32 at least.


class _Block(NamedTuple):
    """Some queries of a segment, and the keys they attend to."""

    queries: slice
    keys: slice
    is_causal: bool

    def group(self, state_QHD: Tensor, key_heads: int) -> Tensor:
        """Queries, or a tensor of their shape, grouped by key head; (J, G·T, D)."""
        state_TJGD = state_QHD[self.queries].unflatten(1, (key_heads, -1))
        return state_TJGD.permute(1, 2, 0, 3).flatten(1, 2)

    def ungroup(self, grouped: Tensor, target_QHD: Tensor) -> None:
        """Write a grouped tensor back to the block's queries of ``target_QHD``."""
        target_TJGD = target_QHD[self.queries].unflatten(1, (len(grouped), -1))
        target_TJGD.copy_(grouped.unflatten(1, (-1, len(target_TJGD))).permute(2, 0, 1, 3))

    def scores(self, query: Tensor, key_JKD: Tensor, scale: float) -> Tensor:
        """Scores of grouped queries, -∞ where masked; (J, G·T, keys)."""
        scores = (query * scale) @ key_JKD[:, self.keys].mT
        if self.is_causal:
            count = self.queries.stop - self.queries.start
            later_TT = torch.ones(count, count, dtype=torch.bool, device=query.device).triu(1)
            scores.unflatten(1, (-1, count))[..., -count:].masked_fill_(later_TT, -torch.inf)
        return scores


def _reference_forward(states: States, segments: VarlenSegments, scale: float) -> AttentionState:
    query_QHD, key_JKD, value_JKD = _by_key_head(states)
    output_QHD = states.query_QHD.new_empty(*query_QHD.shape[:2], value_JKD.shape[-1])
    lse_HQ = _empty_lse(query_QHD)
    for block in _blocks(segments):
        query = block.group(query_QHD, len(key_JKD))
        scores = block.scores(query, key_JKD, scale)
        lse = scores.logsumexp(-1, keepdim=True)
        block.ungroup(scores.sub_(lse).exp_() @ value_JKD[:, block.keys], output_QHD)
        lse_HQ[:, block.queries] = lse.view(len(lse_HQ), -1)
    return AttentionState(output_QHD, lse_HQ)


def _reference_backward(
    states: States, state: AttentionState, grad_QHD: Tensor, segments: VarlenSegments, scale: float
) -> States:
    query_QHD, key_JKD, value_JKD = _by_key_head(states)
    grad_QHD = grad_QHD.to(query_QHD.dtype)
    mean_HQ = (grad_QHD * state.output_QHD).sum(-1).transpose(0, 1)
    grad_query_QHD = torch.empty_like(query_QHD)
    grad_key_JKD, grad_value_JKD = torch.zeros_like(key_JKD), torch.zeros_like(value_JKD)
    for block in _blocks(segments):
        query, grad = (block.group(tensor, len(key_JKD)) for tensor in (query_QHD, grad_QHD))
        lse, mean = (
            tensor_HQ[:, block.queries].reshape(*query.shape[:2], 1)
            for tensor_HQ in (state.lse_HQ, mean_HQ)
        )
        weights = block.scores(query, key_JKD, scale).sub_(lse).exp_()
        grad_scores = grad @ value_JKD[:, block.keys].mT
        grad_scores = grad_scores.sub_(mean).mul_(weights).mul_(scale)
        block.ungroup(grad_scores @ key_JKD[:, block.keys], grad_query_QHD)
        grad_key_JKD[:, block.keys] += grad_scores.mT @ query
        grad_value_JKD[:, block.keys] += weights.mT @ grad
    grads = grad_query_QHD, grad_key_JKD.transpose(0, 1), grad_value_JKD.transpose(0, 1)
    return States(*(grad.to(states.query_QHD.dtype) for grad in grads))


def _by_key_head(states: States) -> tuple[Tensor, Tensor, Tensor]:
    dtype = _at_least_float32(states.query_QHD)
    query_QHD, key_KJD, value_KJD = (state.to(dtype) for state in states)
    return query_QHD, key_KJD.transpose(0, 1), value_KJD.transpose(0, 1)


def _blocks(segments: VarlenSegments) -> Iterator[_Block]:
    for queries, keys in _segment_slices(segments):
        for start in range(queries.start, queries.stop, BLOCK):
            end = min(start + BLOCK, queries.stop)
            last = end if segments.is_causal else keys.stop
            yield _Block(slice(start, end), slice(keys.start, last), segments.is_causal)


FLASH = VarlenKernel(_flash_forward, _flash_backward, _merge_on_gpu)
CPU_SDPA = VarlenKernel(_cpu_forward, _cpu_backward, _merge_states)
REFERENCE = VarlenKernel(_reference_forward, _reference_backward, _merge_states)
