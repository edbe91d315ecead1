"""Kept trajectories of finished domains, and what was measured on them when they were kept.

Shapes: N tokens under the mask of a trajectory.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_cl.buffer import Experience, Strategy, TrajectoryBuffer, even_shares
from grpo_cl.types import TokenTrace

OVERDRAW = 4
"""Episodes drawn for each one wanted, since not all are of use."""


class Kept(NamedTuple):
    """One trajectory."""

    trace: TokenTrace
    reward: float
    columns: dict[str, Tensor]
    """By name, a row for each of the N tokens."""


class Memory:
    """Trajectories by domain; drawing from it depends on nothing but the chance passed in."""

    def __init__(self) -> None:
        self.kept: dict[str, list[Kept]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.kept.values()))

    def draw(self, count: int, domains: Sequence[str], rng: Random) -> list[Kept]:
        """``count`` different ones, evenly of ``domains``; fewer where there are fewer."""
        known = [domain for domain in domains if self.kept.get(domain)]
        if not known:
            return []
        shares = even_shares(count, known, rng)
        return [
            kept
            for domain, share in shares.items()
            for kept in rng.sample(self.kept[domain], min(share, len(self.kept[domain])))
        ]

    def tensors(self) -> dict[str, Tensor]:
        """Everything as named tensors, bit for bit."""
        return {
            f"{domain}/{place}/{field}": tensor
            for domain, kept in self.kept.items()
            for place, one in enumerate(kept)
            for field, tensor in _fields(one).items()
        }

    def load(self, tensors: Mapping[str, Tensor], domains: Sequence[str]) -> None:
        """Become the memory whose ``tensors`` these are; its domains are among ``domains``."""
        found: dict[str, dict[int, dict[str, Tensor]]] = {}
        for name, tensor in tensors.items():
            domain, place, field = name.rsplit("/", 2)
            found.setdefault(domain, {}).setdefault(int(place), {})[field] = tensor
        self.kept = {
            domain: [_kept(found[domain][place]) for place in sorted(found[domain])]
            for domain in domains
            if domain in found
        }


def sample_traced(
    buffer: TrajectoryBuffer, domain: str, count: int, strategy: Strategy
) -> list[tuple[Experience, TokenTrace]]:
    """``count`` stored episodes in which the policy wrote something, or as many as are found."""
    records = buffer.sample(domain, OVERDRAW * count, strategy)
    return [(record, trace) for record in records if (trace := written(record))][:count]


def written(record: Experience) -> TokenTrace | None:
    """The tokens of an episode, if the policy wrote any of them."""
    trace = record.trajectory.tokens
    return trace if trace is not None and any(trace.mask[1:]) else None


def _fields(kept: Kept) -> dict[str, Tensor]:
    trace = kept.trace
    return {
        "ids": torch.tensor(trace.ids, dtype=torch.int64),
        "mask": torch.tensor(trace.mask),
        "sampler": torch.tensor(trace.logprobs, dtype=torch.float64),
        "reward": torch.tensor([kept.reward], dtype=torch.float64),
        **{f"column.{name}": column for name, column in kept.columns.items()},
    }


def _kept(fields: Mapping[str, Tensor]) -> Kept:
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
    return Kept(trace, fields["reward"].item(), columns)
