"""Trajectories as padded tensors: their assignment to ranks and micro-batches.

Everything here is a function of the global batch, so all ranks compute the same assignment without
communication. Shapes: B sequences of a micro-batch, T token positions.
"""

import struct
import zlib
from array import array
from collections.abc import Iterable, Sequence
from itertools import compress, count
from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_cl.config import GRPOConfig
from grpo_cl.policy.kernels.packing import Layout, pack
from grpo_cl.policy.kernels.prefix_groups import PrefixGroup, nested_groups
from grpo_cl.policy.learner.loss import loss_lengths, sequence_weights
from grpo_cl.rewards.advantages import token_advantages
from grpo_cl.types import TokenTrace, TrajectoryGroup

Advantage = float | Sequence[float] | None
"""Of one trajectory: one value, one per turn, or None to leave the trajectory out."""

ATTENTION_TOKENS = 16384
"""Sequence length at which attention costs as much as all other layers, for models of a few billion
parameters; for other sizes the balance between ranks is slightly worse."""


class TrainingSample(NamedTuple):
    """One trajectory of a training batch."""

    trace: TokenTrace
    advantages: tuple[float, ...]
    """One per sampled token, as log-probs are."""
    weight: float
    """Weight of each of its tokens in the loss of the global batch."""

    @property
    def length(self) -> int:
        """Tokens to compute: tokens after the last loss token cannot change the loss."""
        mask = self.trace.mask
        return len(mask) - next(compress(count(), reversed(mask)))

    @property
    def cost(self) -> float:
        """Cost of a forward and backward pass, in tokens of a short sequence."""
        return self.length * (1 + self.length / ATTENTION_TOKENS)


class MicroBatch(NamedTuple):
    """The tensors of one forward and backward pass, padded on the right."""

    ids_BT: Tensor
    attention_BT: Tensor
    """1 on tokens, 0 on padding."""
    mask_BT: Tensor
    """True on the tokens that the policy generated."""
    sampler_logprobs_BT: Tensor
    advantages_BT: Tensor
    weights_B: Tensor
    layout: Layout | None = None
    """The sequences packed, without padding and repeated prefixes."""


class _SampleGroup(NamedTuple):
    """Samples with a common prefix."""

    members: list[TrainingSample]
    prefix_length: int
    inner: "tuple[_SampleGroup, ...]" = ()
    """Groups of members with a longer common prefix, and last the members in none of them."""

    @property
    def cost(self) -> float:
        """Cost of a forward and backward pass over all of them, the prefix computed once."""
        prefix = self.prefix_length
        saved = prefix * (len(self.members) - 1) * (1 + prefix / ATTENTION_TOKENS)
        return sum(sample.cost for sample in self.members) - saved

    def parts(self, max_members: int) -> "list[_SampleGroup]":
        """The group in parts of at most ``max_members``."""
        starts = range(0, len(self.members), max_members)
        return [
            self._replace(members=self.members[start : start + max_members]) for start in starts
        ]


def policy_samples(
    groups: Sequence[TrajectoryGroup],
    advantages: Sequence[Sequence[Advantage]],
    config: GRPOConfig,
) -> list[TrainingSample]:
    """The samples of a global batch, with the loss weight of each sequence.

    Left out, and in no denominator: trajectories without an advantage or without generated tokens,
    and truncated ones if ``loss.overlong`` masks them.
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
        TrainingSample(trace, token_advantages(trace, advantage), weight)
        for (trace, advantage), weight in zip(pairs, weights, strict=True)
        if weight
    ]


def sft_samples(traces: Sequence[TokenTrace]) -> list[TrainingSample]:
    """The samples of demonstrations: every token under a mask has the same weight."""
    total = sum(trace.mask.count(True) for trace in traces)
    return [
        TrainingSample(trace, token_advantages(trace, 1.0), 1 / total)
        for trace in traces
        if any(trace.mask)
    ]


def balance_over_ranks(
    samples: Sequence[TrainingSample], world_size: int
) -> list[list[TrainingSample]]:
    """The samples of each rank, balanced by cost: the largest first, to the least loaded rank.

    Samples with a common prefix stay on one rank, up to its share of all samples: the tasks of a
    domain have the policy text in common.
    """
    if world_size == 1:
        return [list(samples)]  # grouping would not change anything
    max_members = ceil(len(samples) / world_size)
    parts = [part for group in _group(samples) for part in group.parts(max_members)]
    shares: list[list[TrainingSample]] = [[] for _ in range(world_size)]
    loads = [0.0] * world_size
    for part in sorted(parts, key=lambda part: -part.cost):
        rank = loads.index(min(loads))
        shares[rank] += part.members
        loads[rank] += part.cost
    return shares


def plan_micro_batches(
    samples: Sequence[TrainingSample], config: GRPOConfig, world_size: int
) -> list[list[list[TrainingSample]]]:
    """The micro-batches of each rank.

    One has at most the episodes of ``batch_size_per_gpu`` tasks. Where a rank has more tasks than
    it drew, as with additive replay, ``gradient_accumulation_steps`` divides them all.
    """
    episodes = config.batch_size_per_gpu * config.num_samples_per_prompt
    return [
        micro_batches(
            share,
            config.optimizer.micro_batch_tokens,
            max_samples=max(episodes, ceil(len(share) / config.gradient_accumulation_steps)),
        )
        for share in balance_over_ranks(samples, world_size)
    ]


def micro_batches(
    samples: Sequence[TrainingSample], max_tokens: int, *, max_samples: int | None = None
) -> list[list[TrainingSample]]:
    """The samples in micro-batches of at most ``max_tokens`` computed tokens, the largest first.

    A common prefix counts once per micro-batch. A sample that is longer than the budget has a
    micro-batch to itself.
    """
    limit = max_samples or len(samples)
    parts = [part for group in _group(samples) for part in _split(group, max_tokens, limit)]
    batches: list[list[TrainingSample]] = []
    free_tokens: list[int] = []
    for tokens, members in sorted(parts, key=lambda part: -part[0]):
        fits = (
            tokens <= free and len(batch) + len(members) <= limit
            for batch, free in zip(batches, free_tokens, strict=True)
        )
        index = next(compress(count(), fits), len(batches))
        if index == len(batches):
            batches.append([])
            free_tokens.append(max_tokens)
        batches[index] += members
        free_tokens[index] -= tokens
    return batches


def _split(
    group: _SampleGroup, max_tokens: int, max_members: int
) -> list[tuple[int, list[TrainingSample]]]:
    """Parts of a group with their computed tokens; each part computes the prefix again.

    An inner group is divided only where a part is full.
    """
    parts: list[tuple[int, list[TrainingSample]]] = []
    for inner in group.inner or (group,):
        shared = group.prefix_length  # the first sample of an inner group computes its prefix
        for sample in sorted(inner.members, key=lambda sample: -sample.length):
            suffix, shared = sample.length - shared, inner.prefix_length
            tokens, members = parts[-1] if parts else (max_tokens, [])
            if tokens + suffix <= max_tokens and len(members) < max_members:
                parts[-1] = (tokens + suffix, [*members, sample])
            else:
                parts.append((sample.length, [sample]))
    return parts


def _group(samples: Sequence[TrainingSample]) -> list[_SampleGroup]:
    return [_sample_group(samples, group) for group in nested_groups(_ids(samples))]


def _sample_group(samples: Sequence[TrainingSample], group: PrefixGroup) -> _SampleGroup:
    parts = (*group.inner, group.outside) if group.inner else ()
    inner = tuple(_sample_group(samples, part) for part in parts)
    members = [samples[index] for index in group.members]
    return _SampleGroup(members, group.prefix_length, inner)


def _ids(samples: Sequence[TrainingSample]) -> list[tuple[int, ...]]:
    return [sample.trace.ids[: sample.length] for sample in samples]


def checksum(samples: Sequence[TrainingSample]) -> int:
    """A checksum of a global batch."""
    total = 0
    for sample in samples:
        total = zlib.crc32(array("q", sample.trace.ids), total)
        total = zlib.crc32(array("d", sample.advantages), total)
    return total


def collate(samples: Sequence[TrainingSample], device: torch.device) -> MicroBatch:
    """The samples as tensors on ``device``."""
    sequences = _ids(samples)
    lengths = list(map(len, sequences))
    layout = pack(sequences, nested_groups(sequences)).to(device)
    lengths_B = torch.tensor(lengths, device=device)
    attention_BT = torch.arange(max(lengths), device=device) < lengths_B[:, None]
    mask_BT = _padded_masks(samples, lengths).to(device).view(attention_BT.shape)

    def scattered(values: Iterable[Sequence[float]]) -> Tensor:
        values_N = torch.frombuffer(_floats(values), dtype=torch.float).to(device)
        return torch.zeros(mask_BT.shape, device=device).masked_scatter(mask_BT, values_N)

    return MicroBatch(
        ids_BT=layout.ids_1N[0, layout.gather_index_BT].masked_fill(~attention_BT, 0),
        attention_BT=attention_BT.long(),
        mask_BT=mask_BT,
        sampler_logprobs_BT=scattered(sample.trace.logprobs for sample in samples),
        advantages_BT=scattered(sample.advantages for sample in samples),
        weights_B=torch.tensor([sample.weight for sample in samples], device=device),
        layout=layout,
    )


def _padded_masks(samples: Sequence[TrainingSample], lengths: Sequence[int]) -> Tensor:
    """The loss masks of all sequences, each padded to the longest, in one row."""
    # Bytes are concatenated in Python: one tensor operation costs as much as hundreds of these.
    masks, width = bytearray(), max(lengths)
    for sample, length in zip(samples, lengths, strict=True):
        mask, logprobs = bytes(sample.trace.mask[:length]), sample.trace.logprobs
        if mask.count(1) != len(logprobs):
            raise ValueError(
                f"{len(logprobs)} log-probs for {mask.count(1)} tokens under the mask of a trace; "
                "pass one per token"
            )
        assert len(sample.advantages) == len(logprobs), "one advantage per sampled token"
        masks.extend(mask + bytes(width - length))
    return torch.frombuffer(masks, dtype=torch.bool)


def _floats(sequences: Iterable[Sequence[float]]) -> bytearray:
    """The values of all sequences as float32."""
    parts = (struct.pack(f"{len(values)}f", *values) for values in sequences)
    return bytearray(b"".join(parts))  # array.array takes three times as long
