"""Policy updates: GRPO and SFT steps on a global batch.

Every rank gets the same global batch and computes the gradients of its share, which are summed
over ranks. The loss is a sum over tokens whose weights come from the global batch, so neither the
number of ranks nor the split into micro-batches changes the result.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers.modeling_layers import GradientCheckpointingLayer

from grpo_cl.config import GRPOConfig
from grpo_cl.policy.learner.batching import (
    Advantage,
    MicroBatch,
    TrainingSample,
    checksum,
    collate,
    plan_micro_batches,
    policy_samples,
    sft_samples,
)
from grpo_cl.policy.learner.fsdp import shard_policy
from grpo_cl.policy.learner.loss import LossBatch, policy_loss
from grpo_cl.policy.learner.memory_stats import MemoryMeter, PhasePeaks, memory_meter
from grpo_cl.policy.learner.metric_accumulator import MetricAccumulator, sum_scalars
from grpo_cl.policy.learner.optimizer import (
    GradientTransform,
    LearnerState,
    Optimizer,
    StepResult,
    summary,
)
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.model.policy_model import PolicyModel
from grpo_cl.policy.model.weights import full_tensor, reshard
from grpo_cl.types import TokenTrace, TrajectoryGroup

WEIGHTS_FILE = "weights.safetensors"

AuxiliaryLoss = Callable[[PolicyModel], Tensor | None]
"""A penalty on the policy, the same on every rank, that is added to the loss of each update.

For a sharded policy it must be computed from the sharded weights, without ``full_tensor``."""


class Learner:
    """Updates a policy; holds the optimizer state."""

    def __init__(
        self,
        policy: PolicyModel,
        config: GRPOConfig,
        ranks: DistributedContext,
        *,
        shard: bool = False,
        meter: MemoryMeter | None = None,
    ) -> None:
        self.policy = policy
        self.config = config
        self.ranks = ranks
        self._is_sharded = shard and ranks.world_size > 1
        if self._is_sharded:
            for module in policy.modules:
                shard_policy(module, ranks)
        self._optimizer = Optimizer(policy.trainable(), config)
        self._peaks = PhasePeaks(meter or memory_meter(policy.device))

    def update(
        self,
        groups: Sequence[TrajectoryGroup],
        advantages: Sequence[Sequence[Advantage]],
        *,
        auxiliary: AuxiliaryLoss | None = None,
        transform: GradientTransform | None = None,
    ) -> dict[str, float]:
        """Make ``updates_per_batch`` GRPO updates on the global batch, the same on every rank.

        A trajectory whose advantage is None is left out. Without samples and penalty no step is
        made: momentum alone must not move the weights.
        """
        samples = policy_samples(groups, advantages, self.config)
        metrics = MetricAccumulator()
        old_logprobs: list[Tensor] = []
        steps: list[StepResult] = []
        with self.update_scope(samples) as (batches, numbers):
            references = self._reference_logprobs(batches)
            self._peaks.end("score")
            for _ in range(self.config.loss.updates_per_batch):
                losses = self._losses(batches, references, old_logprobs, metrics)
                step = self.optimizer_step(
                    losses, samples, auxiliary=auxiliary, transform=transform
                )
                steps += [step] if step else []
                if step is None or not step.is_finite:
                    break  # the same batch would give the same result again
        return {**metrics.summary(self.ranks), **summary(steps), **numbers}

    def loss(
        self, groups: Sequence[TrajectoryGroup], advantages: Sequence[Sequence[Advantage]]
    ) -> Tensor:
        """The loss of this rank's share of a global batch, with its graph and without a step.

        Ratios are relative to the log-probs that the sampler recorded.
        """
        batches = self._micro_batches(policy_samples(groups, advantages, self.config))
        recorded = [batch.sampler_logprobs_BT for batch in batches]
        references = self._reference_logprobs(batches)
        losses = self._losses(batches, references, recorded, MetricAccumulator())
        return sum(losses, start=torch.zeros((), device=self.policy.device))

    def state_dict(self) -> LearnerState:
        """What an exact resume needs besides the policy's weights; a collective if sharded."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state: LearnerState) -> None:
        """Restore a ``state_dict``; the policy loads its own weights."""
        self._optimizer.load_state_dict(state)

    def save_state(self, folder: Path) -> None:
        """Write the weights and the optimizer state; a collective if the policy is sharded."""
        weights, state = self.policy.state_dict(), self.state_dict()
        if self.ranks.is_main:
            save_file({name: t.contiguous() for name, t in weights.items()}, folder / WEIGHTS_FILE)
            state.save(folder)

    def load_state(self, folder: Path) -> None:
        """Restore what ``save_state`` wrote."""
        self.policy.load_state_dict(load_file(folder / WEIGHTS_FILE))
        self.load_state_dict(LearnerState.load(folder))

    def weights(self) -> dict[str, Tensor]:
        """Copies of the trainable weights, by name."""
        return self._optimizer.weights()

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Replace the trainable weights of these names."""
        self._optimizer.load_weights(weights)
        reshard(self.policy.module)

    def reset_optimizer(self) -> None:
        """Clear the optimizer's moments and its update count."""
        self._optimizer.reset()

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update."""
        return self._optimizer.learning_rate

    @contextmanager
    def update_scope(
        self, samples: Sequence[TrainingSample]
    ) -> Generator[tuple[list[MicroBatch], dict[str, float]]]:
        """The micro-batches of this rank, and metrics that are complete on exit."""
        self._check_agreement(samples)
        started = time.perf_counter()
        numbers: dict[str, float] = {}
        self._peaks.end("sample")
        yield self._micro_batches(samples), numbers
        self._peaks.end("update")
        numbers |= self.ranks.maximum(self._peaks.take())
        numbers["tokens"] = float(sum(sample.trace.mask.count(True) for sample in samples))
        numbers["update_s"] = time.perf_counter() - started

    def optimizer_step(
        self,
        losses: Iterable[Tensor],
        samples: Sequence[TrainingSample],
        *,
        auxiliary: AuxiliaryLoss | None = None,
        transform: GradientTransform | None = None,
    ) -> StepResult | None:
        """One optimizer step on the losses summed over all ranks.

        Each loss is computed after the backward pass of the one before it. None, and no step, if
        there are neither ``samples``, the global batch, nor a penalty.
        """
        self._optimizer.clear()
        with self._training():
            detached: list[Tensor] = []
            for loss in losses:
                loss.backward()
                detached.append(loss.detach())
            penalty = auxiliary(self.policy) if auxiliary else None
            share = 0.0 if penalty is None else self._backward_penalty(penalty)
            total = sum_scalars(detached) + share
        if not samples and penalty is None:
            return None
        self.ranks.all_reduce_gradients(self._optimizer.parameters.values())
        return self._optimizer.step(self.ranks.sum({"loss": total})["loss"], transform)

    def gradients(self, losses: Iterable[Tensor]) -> dict[str, Tensor]:
        """Gradients of the sum of this rank's losses, by name, without dropout and without a step.

        FSDP sums the gradients of a sharded policy over all ranks.
        """
        self._optimizer.clear()
        with self._training(dropout=False):
            for loss in losses:
                loss.backward()
        gradients = {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for name, parameter in self._optimizer.parameters.items()
        }
        self._optimizer.clear()
        return gradients

    def _backward_penalty(self, penalty: Tensor) -> float:
        """Backward pass of a penalty equal on all ranks, counted once over them; its share."""
        is_sharded = isinstance(penalty, DTensor)  # gradients go to the shards, without a sum
        share = penalty if is_sharded else penalty / self.ranks.world_size
        share.backward()
        return full_tensor(penalty).item() / self.ranks.world_size

    def _micro_batches(self, samples: Sequence[TrainingSample]) -> list[MicroBatch]:
        plans = plan_micro_batches(samples, self.config, self.ranks.world_size)
        own = plans[self.ranks.rank]
        if self._is_sharded and samples:
            # A forward of a sharded module is a collective: a rank with fewer micro-batches adds
            # some of weight 0.
            dummy = min(samples, key=lambda sample: sample.length)._replace(weight=0.0)
            own += [[dummy]] * (max(map(len, plans)) - len(own))
        return [collate(part, self.policy.device) for part in own]

    def _losses(
        self,
        batches: Sequence[MicroBatch],
        references: Sequence[Tensor | None],
        old_logprobs: list[Tensor],
        metrics: MetricAccumulator,
    ) -> Iterator[Tensor]:
        """The losses of one update; the first update fills ``old_logprobs``.

        The micro-batches of the first update are computed with the weights before any step, so
        their log-probs are the old ones and need no forward pass of their own.
        """
        for number, batch in enumerate(batches):
            scores = self.policy.logprobs(
                batch.ids_BT,
                batch.attention_BT,
                temperature=self.config.temperature,
                mask_BT=batch.mask_BT,
                layout=batch.layout,
            )
            if len(old_logprobs) == number:
                old_logprobs.append(scores.logprobs_BT.detach())
            loss_batch = LossBatch(
                logprobs_BT=scores.logprobs_BT,
                old_logprobs_BT=old_logprobs[number],
                sampler_logprobs_BT=batch.sampler_logprobs_BT,
                reference_logprobs_BT=references[number],
                advantages_BT=batch.advantages_BT,
                mask_BT=batch.mask_BT,
                weights_B=batch.weights_B,
            )
            result = policy_loss(loss_batch, self.config.loss, self.config.kl_coef)
            counted_BT = batch.mask_BT & (batch.weights_B != 0)[:, None]
            metrics.add(result.metric_sums, scores.entropy_BT, counted_BT)
            yield result.loss

    @torch.no_grad()
    def _reference_logprobs(self, batches: Sequence[MicroBatch]) -> list[Tensor | None]:
        if not self.config.kl_coef:
            return [None] * len(batches)
        with self.policy.reference():
            return [
                self.policy.logprobs(
                    batch.ids_BT,
                    batch.attention_BT,
                    temperature=self.config.temperature,
                    mask_BT=batch.mask_BT,
                    layout=batch.layout,
                ).logprobs_BT
                for batch in batches
            ]

    @contextmanager
    def _training(self, *, dropout: bool = True) -> Generator[None]:
        """Training mode with its own dropout seed, or with checkpointing but without dropout.

        The seed depends on the number of updates, so a resumed run has the same dropout masks.
        """
        device = self.policy.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(hash((self.config.seed, self._optimizer.updates, self.ranks.rank)))
            self.policy.module.train()
            if not dropout:
                _disable_dropout(self.policy.module)
            try:
                yield
            finally:
                self.policy.module.eval()

    def _check_agreement(self, samples: Sequence[TrainingSample]) -> None:
        if self.ranks.world_size == 1:
            return
        # Ranks also wait here for the slowest, before the first collective with a short timeout.
        assert len(set(self.ranks.all_gather(checksum(samples)))) == 1, (
            "ranks have different batches"
        )


def _disable_dropout(module: nn.Module) -> None:
    """Set evaluation mode everywhere but in layers that checkpoint activations in training mode."""
    for part in module.modules():
        part.training = isinstance(part, GradientCheckpointingLayer)


def supervised_update(learner: Learner, traces: Sequence[TokenTrace]) -> dict[str, float]:
    """One SFT step on the cross-entropy of the masked tokens, a mean over those of all traces.

    Every rank passes the same traces. Their log-probs are not used.
    """
    samples = sft_samples(traces)
    with learner.update_scope(samples) as (batches, numbers):
        step = learner.optimizer_step(_cross_entropies(learner.policy, batches), samples)
    return {**summary([step] if step else []), **numbers}


def _cross_entropies(policy: PolicyModel, batches: Sequence[MicroBatch]) -> Iterator[Tensor]:
    for batch in batches:
        scores = policy.logprobs(
            batch.ids_BT, batch.attention_BT, mask_BT=batch.mask_BT, layout=batch.layout
        )
        weights_BT = batch.mask_BT * batch.weights_B[:, None]
        yield -(scores.logprobs_BT * weights_BT).sum()
