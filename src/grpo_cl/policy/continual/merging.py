"""One policy made of several, weight by weight.

Formulas in docs/algorithms.md.
"""

import math
import struct
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from grpo_cl.policy.continual.tensors import Tensors, inner

Weights = Mapping[str, Tensor]

LARGEST = 0x7F7FFFFF
"""The bits of the largest float32; those of positive numbers are ordered as the numbers are."""


def interpolated(some: Weights, others: Weights, share: float) -> Tensors:
    """``share`` of ``others`` and the rest of ``some``; exactly one of them at 0 and at 1."""
    return {name: torch.lerp(some[name], other, share) for name, other in others.items()}


def task_vector(start: Weights, learned: Weights) -> Tensors:
    """What learning added to ``start``."""
    return {name: weight - start[name] for name, weight in learned.items()}


def summed(start: Weights, vectors: Sequence[Weights], scale: float) -> Tensors:
    """``start`` and ``scale`` times every vector (task arithmetic, arXiv:2212.04089)."""
    return {
        name: weight + scale * torch.stack([vector[name] for vector in vectors]).sum(0)
        for name, weight in start.items()
    }


def elected(start: Weights, vectors: Sequence[Weights], *, keep: float, scale: float) -> Tensors:
    """``start`` and ``scale`` times what the vectors agree on (TIES, arXiv:2306.01708).

    Of each vector the ``keep`` largest share counts. In each place the sign with the larger sum
    wins, and those of that sign are averaged.
    """
    limits = [_limit(vector, keep) for vector in vectors]
    merged: Tensors = {}
    for name, weight in start.items():
        pairs = zip(vectors, limits, strict=True)
        trimmed = torch.stack([v[name] * (v[name].abs() >= limit) for v, limit in pairs])
        agrees = trimmed.sign() == trimmed.sum(0).sign()
        total = (trimmed * agrees).sum(0)
        count = (agrees & (trimmed != 0)).sum(0)
        merged[name] = weight + scale * total / count.clamp(min=1)
    return merged


def distance(some: Weights, others: Weights) -> float:
    """The length of the difference of two policies."""
    difference = task_vector(some, others)
    return math.sqrt(inner(difference, difference))


def _limit(vector: Weights, share: float) -> float:
    """The smallest size among the ``share`` largest entries.

    Found by bisection over the bits of float32: sorting would need a second copy of all weights.
    """
    wanted = max(1, round(share * sum(weight.numel() for weight in vector.values())))
    low, high = 0, LARGEST
    while low < high:
        middle = (low + high + 1) // 2
        size = _float(middle)
        if sum(int((weight.abs() >= size).sum()) for weight in vector.values()) >= wanted:
            low = middle
        else:
            high = middle - 1
    return _float(low)


def _float(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]
