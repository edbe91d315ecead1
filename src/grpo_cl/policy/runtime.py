"""A policy at work: the model, the sampler that writes with it, the learner that changes it."""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers.utils.logging import disable_progress_bar

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.metrics.rmatrix import Drift
from grpo_cl.policy.actor import PolicyActor
from grpo_cl.policy.drift import Past
from grpo_cl.policy.engines import Engine, own_sampler
from grpo_cl.policy.frozen import frozen_policy, policy_actor
from grpo_cl.policy.learner import Learner
from grpo_cl.policy.model import PolicyModel
from grpo_cl.policy.optimizer import LearnerState
from grpo_cl.policy.ranks import Ranks
from grpo_cl.policy.sharding import gathered
from grpo_cl.policy.tabular import TabularActor
from grpo_cl.rundir import read_json, write_json
from grpo_cl.types import TokenTrace, TrajectoryGroup

SMALL = 50_000_000
"""Parameters below which a second thread costs more than it brings (docs/log.md)."""

WEIGHTS, MOMENTS, NUMBERS = "weights.safetensors", "optimizer.safetensors", "optimizer.json"
PAST = "past"
"""The folder of the policies that drift is measured from."""


def use_few_threads(model: PolicyModel) -> None:
    """Let a small model on a CPU use one thread: waiting for a second takes longer than working."""
    if model.device.type == "cpu" and model.num_parameters < SMALL:
        torch.set_num_threads(1)


def _is_sharded(config: GRPOConfig, ranks: Ranks) -> bool:
    if config.sharding == "fsdp" and ranks.world_size == 1:
        raise ConfigError(
            "sharding=fsdp spreads a policy over several processes and here is one; start with "
            "torchrun --nproc_per_node=2 or more, or leave sharding out"
        )
    return config.sharding == "fsdp"


class PolicyRuntime:
    """What the training loop uses; see ``trainer.Policy``."""

    def __init__(self, config: GRPOConfig, *, ranks: Ranks | None = None) -> None:
        disable_progress_bar()  # a run has a progress line of its own
        self.config = config
        self.ranks = ranks or Ranks.join()
        is_sharded = _is_sharded(config, self.ranks)
        self.model = PolicyModel.load(config, device=self.ranks.device)
        use_few_threads(self.model)
        self.learner = Learner(self.model, config, self.ranks, shard=is_sharded)
        self._engine = Engine(self.model, config, self.ranks)
        self._past = Past(self.learner) if config.evaluation.drift else None

    @property
    def is_main(self) -> bool:
        """Whether this process writes files."""
        return self.ranks.is_main

    def actor(self, *, temperature: float) -> PolicyActor | TabularActor:
        """An actor that writes with today's weights."""
        sampler = self._engine.sampler()
        return policy_actor(self.model, sampler, self.config, temperature=temperature)

    def frozen_actor(self, *, temperature: float) -> PolicyActor | TabularActor:
        """An actor that writes with the weights the run started from."""
        sampler = own_sampler(self._frozen, self.config)
        return policy_actor(self._frozen, sampler, self.config, temperature=temperature)

    @cached_property
    def _frozen(self) -> PolicyModel:
        return frozen_policy(self.config, self.ranks.device)

    def update(
        self,
        groups: Sequence[TrajectoryGroup],
        advantages: Sequence[Any],
        *,
        auxiliary: Callable[[Any], Any] | None,
        transform: Callable[[Sequence[tuple[str, Any]]], None] | None,
    ) -> dict[str, float]:
        """Learn from groups and return what to log."""
        return self.learner.update(groups, advantages, auxiliary=auxiliary, transform=transform)

    def spread(self, count: int, run: Callable[[Sequence[int]], Sequence[Any]]) -> list[Any]:
        """``run`` over the numbers below ``count``, each by one process; all get all results."""
        self._engine.refresh()  # no sooner: an algorithm may play with other weights
        mine = list(range(self.ranks.rank, count, self.ranks.world_size))
        with gathered(self.model.module):  # a process plays its episodes at its own pace
            made = list(run(mine))
        parts = self.ranks.gather(made)
        results: list[Any] = [None] * count
        for rank, part in enumerate(parts):
            results[rank :: self.ranks.world_size] = part
        return results

    def drift(self, domain: str, traces: Sequence[TokenTrace]) -> Drift | None:
        """How far today's policy, which wrote ``traces``, is from earlier ones, if any are kept."""
        return self._past.drift(domain, traces) if self._past else None

    def remember(self, domain: str) -> None:
        """Be what the drift in a domain is measured from during the next stage."""
        if self._past:
            self._past.remember(domain)

    def agree(self, *, flag: bool) -> bool:
        """Whether any process says so."""
        return any(self.ranks.gather(flag))

    def save(self, folder: Path) -> None:
        """Write a model that others can load."""
        self.model.save(folder, is_main=self.is_main)

    def save_state(self, folder: Path) -> None:
        """Write what an exact resume needs."""
        weights = self.model.state_dict()
        state = self.learner.state_dict()
        if self.is_main:
            save_file({name: t.contiguous() for name, t in weights.items()}, folder / WEIGHTS)
            save_file({name: t.contiguous() for name, t in state.tensors.items()}, folder / MOMENTS)
            write_json(folder / NUMBERS, state.numbers)
        if self._past:
            self._past.save(folder / PAST)

    def load_state(self, folder: Path) -> None:
        """Go on from ``save_state``."""
        self.model.load_state_dict(load_file(folder / WEIGHTS))
        numbers = read_json(folder / NUMBERS)
        self.learner.load_state_dict(LearnerState(load_file(folder / MOMENTS), numbers))
        if self._past:
            self._past.read(folder / PAST)
