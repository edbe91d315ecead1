"""Model merging: interpolation, task arithmetic and TIES. Formulas in docs/algorithms.md."""

import math
import struct
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from grpo_cl.policy.continual.tensors import Tensors, inner_product

Weights = Mapping[str, Tensor]

MAX_FLOAT32_BITS = 0x7F7FFFFF
"""The bits of the largest float32; positive floats are ordered as their bits are."""


def interpolate(start: Weights, end: Weights, fraction: float) -> Tensors:
    """The point ``fraction`` of the way from ``start`` to ``end``; exact at 0 and at 1."""
    return {name: torch.lerp(start[name], weight, fraction) for name, weight in end.items()}


def task_vector(initial: Weights, trained: Weights) -> Tensors:
    """The difference of trained and initial weights."""
    return {name: weight - initial[name] for name, weight in trained.items()}


def add_task_vectors(initial: Weights, vectors: Sequence[Weights], scale: float) -> Tensors:
    """``initial`` plus ``scale`` times the sum of the vectors (arXiv:2212.04089)."""
    return {
        name: weight + scale * torch.stack([vector[name] for vector in vectors]).sum(0)
        for name, weight in initial.items()
    }


def ties_merge(
    initial: Weights, vectors: Sequence[Weights], *, keep: float, scale: float
) -> Tensors:
    """``initial`` plus ``scale`` times the TIES merge of the vectors (arXiv:2306.01708).

    Trim: only the ``keep`` largest fraction of each vector counts. Elect: per entry, the sign with
    the larger sum. Merge: the mean of the trimmed entries of that sign.
    """
    thresholds = [_magnitude_threshold(vector, keep) for vector in vectors]
    merged: Tensors = {}
    for name, weight in initial.items():
        pairs = zip(vectors, thresholds, strict=True)
        trimmed = torch.stack([v[name] * (v[name].abs() >= limit) for v, limit in pairs])
        has_elected_sign = trimmed.sign() == trimmed.sum(0).sign()
        total = (trimmed * has_elected_sign).sum(0)
        count = (has_elected_sign & (trimmed != 0)).sum(0)
        merged[name] = weight + scale * total / count.clamp(min=1)
    return merged


def weight_distance(left: Weights, right: Weights) -> float:
    """The Euclidean distance of two sets of weights."""
    difference = task_vector(left, right)
    return math.sqrt(inner_product(difference, difference))


def _magnitude_threshold(vector: Weights, fraction: float) -> float:
    """The smallest magnitude among the ``fraction`` largest entries.

    Found by bisection over the bits of float32: sorting would need a second copy of all weights.
    """
    wanted_count = max(1, round(fraction * sum(weight.numel() for weight in vector.values())))
    low, high = 0, MAX_FLOAT32_BITS
    while low < high:
        middle = (low + high + 1) // 2
        threshold = _float_of_bits(middle)
        count = sum(int((weight.abs() >= threshold).sum()) for weight in vector.values())
        if count >= wanted_count:
            low = middle
        else:
            high = middle - 1
    return _float_of_bits(low)


def _float_of_bits(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]
