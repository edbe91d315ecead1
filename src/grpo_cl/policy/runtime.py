"""The policy of a run: model, inference backend and learner behind one interface."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import CheckpointError, ConfigError
from grpo_cl.metrics.rmatrix import Drift
from grpo_cl.policy.continual.policy_drift import PolicyHistory
from grpo_cl.policy.inference.backends import (
    InferenceBackend,
    load_initial_policy,
    make_actor,
    transformers_sampler_for,
)
from grpo_cl.policy.inference.policy_agent import PolicyActor, TabularActor
from grpo_cl.policy.learner.fsdp import unsharded
from grpo_cl.policy.learner.learner import Learner
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.model.policy_model import PolicyModel
from grpo_cl.runs.layout import INITIAL_FILE
from grpo_cl.storage.files import read_json, write_json
from grpo_cl.types import TokenTrace, TrajectoryGroup

SMALL = 50_000_000
"""Number of parameters below which one CPU thread is faster than several (docs/log.md)."""

PAST = "past"
"""The folder of the earlier policies that drift is measured from."""


def limit_threads(model: PolicyModel) -> None:
    """Run a small model on a CPU with one thread: synchronising several takes longer."""
    if model.device.type == "cpu" and model.num_parameters < SMALL:
        torch.set_num_threads(1)


def _is_sharded(config: GRPOConfig, ranks: DistributedContext) -> bool:
    if config.sharding == "fsdp" and ranks.world_size == 1:
        raise ConfigError(
            "sharding=fsdp divides the weights among ranks and there is one rank; start with "
            "torchrun --nproc_per_node=2 or more, or leave sharding out"
        )
    return config.sharding == "fsdp"


class PolicyRuntime:
    """The policy that the training loop uses; see ``trainer.loop.Policy``."""

    is_language_model = True

    def __init__(self, config: GRPOConfig, *, ranks: DistributedContext | None = None) -> None:
        disable_progress_bar()  # the run prints its own progress
        self.config = config
        self.ranks = ranks or DistributedContext.initialize()
        is_sharded = _is_sharded(config, self.ranks)
        self.model = PolicyModel.load(config, device=self.ranks.device, will_be_sharded=is_sharded)
        limit_threads(self.model)
        self._checksum = self.model.file_checksum()  # of the reference and of frozen weights
        self.learner = Learner(self.model, config, self.ranks, shard=is_sharded)
        self._engine = InferenceBackend(self.model, config, self.ranks)
        is_concurrent = config.sampling.max_staleness > 0  # episodes are gathered during an update
        self._rollout_ranks = self.ranks.for_another_thread() if is_concurrent else self.ranks
        self._history = PolicyHistory(self.learner) if config.evaluation.drift else None

    @property
    def is_main(self) -> bool:
        """Whether this rank writes files."""
        return self.ranks.is_main

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.ranks.world_size

    def actor(self, *, temperature: float) -> PolicyActor | TabularActor:
        """An actor that samples with the current weights."""
        sampler = self._engine.sampler()
        return make_actor(self.model, sampler, self.config, temperature=temperature)

    def frozen_actor(self, *, temperature: float) -> PolicyActor | TabularActor:
        """An actor that samples with the weights the run started from."""
        sampler = transformers_sampler_for(self._frozen, self.config)
        return make_actor(self._frozen, sampler, self.config, temperature=temperature)

    @cached_property
    def _frozen(self) -> PolicyModel:
        return load_initial_policy(self.config, self.ranks.device)

    def update(
        self,
        groups: Sequence[TrajectoryGroup],
        advantages: Sequence[Any],
        *,
        auxiliary: Callable[[Any], Any] | None,
        transform: Callable[[Sequence[tuple[str, Any]]], None] | None,
    ) -> dict[str, float]:
        """Update the weights on groups and return metrics."""
        return self.learner.update(groups, advantages, auxiliary=auxiliary, transform=transform)

    def loss(self, groups: Sequence[TrajectoryGroup], advantages: Sequence[Any]) -> torch.Tensor:
        """The loss of groups with its graph, without a step."""
        return self.learner.loss(groups, advantages)

    def completion_logprobs(self, prompt: Sequence[int], ids: Sequence[int]) -> torch.Tensor:
        """Log-probs of the tokens after a prompt at the run's temperature, with a gradient."""
        ids_BT = torch.tensor([[*prompt, *ids]], device=self.model.device)
        mask_BT = torch.arange(ids_BT.shape[1], device=self.model.device)[None] >= len(prompt)
        scores = self.model.logprobs(
            ids_BT,
            torch.ones_like(ids_BT),
            mask_BT=mask_BT,
            temperature=self.config.temperature,
        )
        return scores.logprobs_BT[mask_BT]

    def sync_weights(self) -> None:
        """Push the current weights to the inference backend and drop its KV cache.

        All ranks call together, between episodes.
        """
        self._engine.sync_weights()

    def full_parameters(self) -> AbstractContextManager[None]:
        """A context in which sharded weights are gathered, so that ranks sample on their own.

        They stay sharded where the sampler has its own copy of the weights.
        """
        is_local = self.config.sampling.engine == "transformers"
        return unsharded(self.model.module) if is_local else nullcontext()

    def map_over_ranks(
        self, count: int, run: Callable[[Sequence[int]], Sequence[Any]]
    ) -> list[Any]:
        """``run`` over the indices below ``count``, divided among ranks; each rank gets all.

        A rank has consecutive ones: the episodes of a task follow each other and share a prompt.
        """
        rank, world_size = self.ranks.rank, self.ranks.world_size
        indices = range(count * rank // world_size, count * (rank + 1) // world_size)
        parts = self._rollout_ranks.all_gather(list(run(list(indices))))
        return [result for part in parts for result in part]

    def drift(self, domain: str, traces: Sequence[TokenTrace]) -> Drift | None:
        """The distance from earlier policies on ``traces``; None unless ``evaluation.drift``."""
        return self._history.drift(domain, traces) if self._history else None

    def remember(self, domain: str) -> None:
        """Keep the current weights as the policy that the next stage's drift is measured from."""
        if self._history:
            self._history.record(domain)

    def any_rank(self, *, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        return any(self.ranks.all_gather(flag))

    def save(self, folder: Path) -> None:
        """Write a Hugging Face model directory."""
        self.model.save(folder, is_main=self.is_main)

    def save_state(self, folder: Path) -> None:
        """Write everything an exact resume needs."""
        self.learner.save_state(folder)
        if self._history:
            self._history.save(folder / PAST)
        if self.is_main:
            write_json(folder / INITIAL_FILE, {"checksum": self._checksum})

    def load_state(self, folder: Path) -> None:
        """Restore what ``save_state`` wrote."""
        self._require_same_model(folder / INITIAL_FILE)
        self.learner.load_state(folder)
        if self._history:
            self._history.load(folder / PAST)

    def _require_same_model(self, path: Path) -> None:
        """Refuse a checkpoint of a run that began with another model."""
        if path.exists() and read_json(path)["checksum"] != self._checksum:
            raise CheckpointError(
                f"{self.config.model_name_or_path} has other weights than when the run began, and "
                "its reference model and frozen weights are read from there; restore that model, "
                "or start a new run"
            )
