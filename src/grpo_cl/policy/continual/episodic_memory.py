"""Episodic memory: trajectories of finished domains with values recorded when they were stored.

Shapes: N tokens under the mask of a trajectory.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_cl.runs.reservoir import Experience, Strategy, even_shares
from grpo_cl.runs.trajectory_buffer import TrajectoryBuffer
from grpo_cl.types import TokenTrace

OVERSAMPLING = 4
"""Episodes drawn from the buffer per episode wanted, since not all of them can be used."""


class MemoryEpisode(NamedTuple):
    """One trajectory in memory."""

    trace: TokenTrace
    reward: float
    columns: dict[str, Tensor]
    """Recorded values by name, one row per token, [N, ...]."""

    @property
    def is_success(self) -> bool:
        """Whether the episode has the full reward."""
        return self.reward >= 1


class EpisodicMemory:
    """Episodes by domain; sampling depends only on the random generator passed in."""

    def __init__(self) -> None:
        self.episodes: dict[str, list[MemoryEpisode]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.episodes.values()))

    def sample(self, count: int, domains: Sequence[str], rng: Random) -> list[MemoryEpisode]:
        """``count`` different episodes, evenly over ``domains``; fewer where there are fewer."""
        stored = [domain for domain in domains if self.episodes.get(domain)]
        if not stored:
            return []
        shares = even_shares(count, stored, rng)
        return [
            episode
            for domain, share in shares.items()
            for episode in rng.sample(self.episodes[domain], min(share, len(self.episodes[domain])))
        ]

    def tensors(self) -> dict[str, Tensor]:
        """The whole memory as named tensors, bit for bit."""
        return {
            f"{domain}/{position}/{field}": tensor
            for domain, episodes in self.episodes.items()
            for position, episode in enumerate(episodes)
            for field, tensor in _fields(episode).items()
        }

    def load(self, tensors: Mapping[str, Tensor], domains: Sequence[str]) -> None:
        """Restore the memory of ``tensors``, whose domains are among ``domains``."""
        fields: dict[str, dict[int, dict[str, Tensor]]] = {}
        for name, tensor in tensors.items():
            domain, position, field = name.rsplit("/", 2)
            fields.setdefault(domain, {}).setdefault(int(position), {})[field] = tensor
        self.episodes = {
            domain: [_episode(fields[domain][position]) for position in sorted(fields[domain])]
            for domain in domains
            if domain in fields
        }


def sample_traced(
    buffer: TrajectoryBuffer, domain: str, count: int, strategy: Strategy
) -> list[tuple[Experience, TokenTrace]]:
    """Up to ``count`` stored episodes that contain tokens of the policy."""
    records = buffer.sample(domain, OVERSAMPLING * count, strategy)
    return [(record, trace) for record in records if (trace := policy_trace(record))][:count]


def policy_trace(record: Experience) -> TokenTrace | None:
    """The tokens of an episode, or None if the policy generated none of them."""
    trace = record.trajectory.tokens
    return trace if trace is not None and any(trace.mask[1:]) else None


def _fields(episode: MemoryEpisode) -> dict[str, Tensor]:
    trace = episode.trace
    return {
        "ids": torch.tensor(trace.ids, dtype=torch.int64),
        "mask": torch.tensor(trace.mask),
        "sampler": torch.tensor(trace.logprobs, dtype=torch.float64),
        "reward": torch.tensor([episode.reward], dtype=torch.float64),
        **{f"column.{name}": column for name, column in episode.columns.items()},
    }


def _episode(fields: Mapping[str, Tensor]) -> MemoryEpisode:
    trace = TokenTrace(
        ids=tuple(fields["ids"].tolist()),
        mask=tuple(fields["mask"].tolist()),
        logprobs=tuple(fields["sampler"].tolist()),
        turns=(),
    )
    columns = {
        name.removeprefix("column."): tensor
        for name, tensor in fields.items()
        if name.startswith("column.")
    }
    return MemoryEpisode(trace, fields["reward"].item(), columns)
