"""Trajectories as padded tensors: which rank takes which, and in which micro-batch.

Everything here is a function of the global batch alone, so every rank works out the same plan
without a word exchanged. Shapes: B sequences of a micro-batch, T token positions.
"""

import zlib
from array import array
from collections.abc import Sequence
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
        return len(mask) - mask[::-1].index(True)

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
    total = sum(sum(trace.mask) for trace in traces)
    return [
        Sample(trace, token_advantages(trace, 1.0), 1 / total)
        for trace in traces
        if any(trace.mask)
    ]


def spread(samples: Sequence[Sample], world_size: int) -> list[list[Sample]]:
    """Each rank's samples, evened out by cost: the dearest first, to whoever has least.

    Families stay together.
    """
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
    shape = len(samples), max(sample.length for sample in samples)
    ids_BT = torch.zeros(shape, dtype=torch.long)
    attention_BT = torch.zeros(shape, dtype=torch.long)
    mask_BT = torch.zeros(shape, dtype=torch.bool)
    sampler_logprobs_BT = torch.zeros(shape)
    advantages_BT = torch.zeros(shape)
    for row, sample in enumerate(samples):
        length, trace = sample.length, sample.trace
        # Buffers, since a tensor made of a tuple looks at every element: ten times the time.
        ids_BT[row, :length] = torch.frombuffer(array("q", trace.ids[:length]), dtype=torch.long)
        attention_BT[row, :length] = 1
        mask_BT[row, :length] = torch.frombuffer(bytearray(trace.mask[:length]), dtype=torch.bool)
        sampler_logprobs_BT[row, mask_BT[row]] = torch.tensor(trace.logprobs)
        advantages = array("d", sample.advantages[:length])
        advantages_BT[row, :length] = torch.frombuffer(advantages, dtype=torch.double)
    weights_B = torch.tensor([sample.weight for sample in samples])
    batch = ids_BT, attention_BT, mask_BT, sampler_logprobs_BT, advantages_BT, weights_B
    sequences = _ids(samples)
    layout = pack(sequences, families(sequences))
    return MicroBatch(*(tensor.to(device) for tensor in batch), layout=layout.to(device))
