"""Trajectories as padded tensors: which rank takes which, and in which micro-batch.

Everything here is a function of the global batch alone, so every rank works out the same plan
without a word exchanged. Shapes: B sequences of a micro-batch, T token positions.
"""

import struct
import zlib
from array import array
from collections.abc import Sequence
from itertools import compress, count
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_cl.advantages import token_advantages
from grpo_cl.config import GRPOConfig
from grpo_cl.policy.loss import loss_lengths, sequence_weights
from grpo_cl.policy.packing import Layout, pack
from grpo_cl.policy.siblings import families
from grpo_cl.types import TokenTrace, TrajectoryGroup

Advantage = float | Sequence[float] | None
"""Of one trajectory: a number, one per turn, or None to leave the trajectory out."""

ATTENTION_TOKENS = 16384
"""Sequence length at which attention costs as much as all the rest, for models of a few billion
parameters; for others it is only the balance between ranks that is a little off."""


class Sample(NamedTuple):
    """One trajectory to learn from."""

    trace: TokenTrace
    advantages: tuple[float, ...]
    """One per token of the trace; 0 off the mask."""
    weight: float
    """What one of its tokens counts in the loss of the global batch."""

    @property
    def length(self) -> int:
        """Tokens to be read: nothing after the last one learned from can change a loss."""
        mask = self.trace.mask
        return len(mask) - next(compress(count(), reversed(mask)))

    @property
    def cost(self) -> float:
        """Work of a forward and backward pass, in tokens of a short sequence."""
        return self.length * (1 + self.length / ATTENTION_TOKENS)


class MicroBatch(NamedTuple):
    """The tensors of one forward and backward pass, padded on the right."""

    ids_BT: Tensor
    attention_BT: Tensor
    """1 on tokens, 0 on padding."""
    mask_BT: Tensor
    """True on the tokens the policy produced."""
    sampler_logprobs_BT: Tensor
    advantages_BT: Tensor
    weights_B: Tensor
    layout: Layout | None = None
    """The rows without padding and repetition."""


class _Family(NamedTuple):
    """Samples that begin alike."""

    members: list[Sample]
    shared: int

    @property
    def cost(self) -> float:
        """Work of a pass over all of them."""
        saved = self.shared * (len(self.members) - 1) * (1 + self.shared / ATTENTION_TOKENS)
        return sum(sample.cost for sample in self.members) - saved


def policy_samples(
    groups: Sequence[TrajectoryGroup],
    advantages: Sequence[Sequence[Advantage]],
    config: GRPOConfig,
) -> list[Sample]:
    """What a global batch is learned from, with each sequence's weight in it.

    Left out, and in no denominator: trajectories without an advantage, without a token of the
    policy, and those cut off by a limit where ``loss.overlong`` masks them.
    """
    pairs = [
        (trajectory.tokens, advantage)
        for group, row in zip(groups, advantages, strict=True)
        for trajectory, advantage in zip(group.trajectories, row, strict=True)
        if trajectory.tokens is not None and advantage is not None
    ]
    lengths = loss_lengths([trace for trace, _ in pairs], overlong=config.loss.overlong)
    weights = sequence_weights(lengths, config.loss.kind, max_tokens=config.max_new_tokens)
    return [
        Sample(trace, token_advantages(trace, advantage), weight)
        for (trace, advantage), weight in zip(pairs, weights, strict=True)
        if weight
    ]


def imitation_samples(traces: Sequence[TokenTrace]) -> list[Sample]:
    """What demonstrations are learned from: every token under a mask counts the same."""
    total = sum(trace.mask.count(True) for trace in traces)
    return [
        Sample(trace, token_advantages(trace, 1.0), 1 / total)
        for trace in traces
        if any(trace.mask)
    ]


def spread(samples: Sequence[Sample], world_size: int) -> list[list[Sample]]:
    """Each rank's samples, evened out by cost: the dearest first, to whoever has least.

    Families stay together.
    """
    if world_size == 1:
        return [list(samples)]  # looking for families would change nothing
    shares: list[list[Sample]] = [[] for _ in range(world_size)]
    loads = [0.0] * world_size
    for family in sorted(_families(samples), key=lambda family: -family.cost):
        rank = loads.index(min(loads))
        shares[rank] += family.members
        loads[rank] += family.cost
    return shares


def micro_batches(samples: Sequence[Sample], max_tokens: int) -> list[list[Sample]]:
    """The samples in passes that compute at most ``max_tokens`` tokens each, the largest first.

    What a family begins with counts once in a pass. A sample that is longer than the budget has a
    pass to itself.
    """
    parts = [part for family in _families(samples) for part in _divided(family, max_tokens)]
    passes: list[list[Sample]] = []
    rooms: list[int] = []
    for tokens, members in sorted(parts, key=lambda part: -part[0]):
        place = next((place for place, room in enumerate(rooms) if tokens <= room), len(passes))
        if place == len(passes):
            passes.append([])
            rooms.append(max_tokens)
        passes[place] += members
        rooms[place] -= tokens
    return passes


def _divided(family: _Family, max_tokens: int) -> list[tuple[int, list[Sample]]]:
    """A family in parts, each with the tokens it computes; each computes the beginning again."""
    parts: list[tuple[int, list[Sample]]] = []
    for sample in sorted(family.members, key=lambda sample: -sample.length):
        rest = sample.length - family.shared
        tokens, members = parts[-1] if parts else (max_tokens, [])
        if tokens + rest <= max_tokens:
            parts[-1] = (tokens + rest, [*members, sample])
        else:
            parts.append((sample.length, [sample]))
    return parts


def _families(samples: Sequence[Sample]) -> list[_Family]:
    return [
        _Family([samples[number] for number in members], shared)
        for members, shared in families(_ids(samples))
    ]


def _ids(samples: Sequence[Sample]) -> list[tuple[int, ...]]:
    return [sample.trace.ids[: sample.length] for sample in samples]


def checksum(samples: Sequence[Sample]) -> int:
    """A number that tells one global batch from another."""
    total = 0
    for sample in samples:
        total = zlib.crc32(array("q", sample.trace.ids), total)
        total = zlib.crc32(array("d", sample.advantages), total)
    return total


def collate(samples: Sequence[Sample], device: torch.device) -> MicroBatch:
    """The samples as tensors on ``device``."""
    sequences = _ids(samples)
    lengths = list(map(len, sequences))
    layout = pack(sequences, families(sequences)).to(device)
    lengths_B = torch.tensor(lengths, device=device)
    attention_BT = torch.arange(max(lengths), device=device) < lengths_B[:, None]
    columns = _columns(samples, lengths)
    mask_BT = _moved(columns.mask, torch.bool, device).view(attention_BT.shape)
    logprobs_N = _moved(columns.logprobs, torch.float, device)
    return MicroBatch(
        ids_BT=layout.ids_1N[0, layout.places_BT].masked_fill(~attention_BT, 0),
        attention_BT=attention_BT.long(),
        mask_BT=mask_BT,
        sampler_logprobs_BT=torch.zeros(mask_BT.shape, device=device).masked_scatter(
            mask_BT, logprobs_N
        ),
        advantages_BT=_moved(columns.advantages, torch.float, device).view(mask_BT.shape),
        weights_B=torch.tensor([sample.weight for sample in samples], device=device),
        layout=layout,
    )


class _Columns(NamedTuple):
    """Rows of numbers one after another, padded to the longest."""

    mask: bytearray
    advantages: bytearray
    logprobs: bytearray
    """Without padding: only those of the tokens under the mask."""


def _columns(samples: Sequence[Sample], lengths: Sequence[int]) -> _Columns:
    # Bytes are joined here, since an operation on a tensor costs as much as hundreds of them.
    columns = _Columns(bytearray(), bytearray(), bytearray())
    for sample, length in zip(samples, lengths, strict=True):
        mask, logprobs = bytes(sample.trace.mask[:length]), sample.trace.logprobs
        if mask.count(1) != len(logprobs):
            raise ValueError(
                f"{len(logprobs)} log-probs for {mask.count(1)} tokens under the mask of a trace; "
                "give one per token"
            )
        padding = max(lengths) - length
        columns.mask.extend(mask + bytes(padding))
        columns.advantages.extend(_floats(sample.advantages[:length]) + _floats([0.0] * padding))
        columns.logprobs.extend(_floats(logprobs))
    return columns


def _floats(values: Sequence[float]) -> bytes:
    return struct.pack(f"{len(values)}f", *values)  # an array takes three times as long


def _moved(values: bytearray, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.frombuffer(values, dtype=dtype).to(device)
