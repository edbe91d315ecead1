"""The base of the algorithms that distil from episodes stored at the end of each stage."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import PositiveInt
from typing_extensions import TypeVar, override

from grpo_cl.algorithms.base import TrainerView
from grpo_cl.algorithms.rehearsal import RehearsalCL
from grpo_cl.config import ConfigRecord
from grpo_cl.policy.continual.episodic_memory import (
    EpisodicMemory,
    MemoryEpisode,
    sample_traced,
)
from grpo_cl.policy.continual.tensors import load_tensors, save_tensors
from grpo_cl.runs.reservoir import Experience, Strategy
from grpo_cl.types import TokenTrace


class MemoryOptions(ConfigRecord):
    """Which episodes are stored, and how many are drawn."""

    memory: PositiveInt = 64
    """Episodes stored per domain."""
    batch: PositiveInt = 16
    """Stored episodes drawn per step."""
    strategy: Strategy = "recent"
    """How episodes are selected from the trajectory buffer; recent ones are closest to the policy
    at the end of the stage."""


MemoryOptionsT = TypeVar("MemoryOptionsT", bound=MemoryOptions)


class EpisodicCL(RehearsalCL[MemoryOptionsT]):
    """Stores episodes of each domain, with recorded values, and draws some of them in each step."""

    stores = "trajectories"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.memory = EpisodicMemory()

    @property
    @abstractmethod
    def is_active(self) -> bool:
        """Whether the loss has a weight above 0."""

    @abstractmethod
    def record(self, stored: Sequence[tuple[Experience, TokenTrace]]) -> list[MemoryEpisode]:
        """Memory episodes with the values of the current policy that the loss needs."""

    def draw_episodes(self, domain: str) -> list[MemoryEpisode]:
        """Stored episodes of the domains before ``domain``, evenly over them."""
        if not len(self.memory):
            return []
        rng = self.next_rng()
        return self.memory.sample(self.options.batch, self.earlier_domains(domain), rng)

    @override
    def post_task_hook(self, trainer: TrainerView, domain: str) -> None:
        if not self.is_active:
            return
        options, buffer = self.options, trainer.trajectory_buffer
        stored = sample_traced(buffer, domain, options.memory, options.strategy)
        self.memory.episodes[domain] = self.record(stored)

    @override
    def save_state(self, folder: Path) -> None:
        save_tensors(folder, self.memory.tensors(), is_main=self.trainer.policy.is_main)

    @override
    def load_state(self, folder: Path) -> None:
        self.memory.load(load_tensors(folder), self.trainer.config.task_order)
