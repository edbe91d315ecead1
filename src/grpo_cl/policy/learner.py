"""Policy updates: a global batch of trajectories in, new weights and numbers out.

Every rank is given the same global batch, works on its share of it and adds its gradients to the
others'. The loss is a sum over tokens whose weights come from the whole batch, so neither the
number of ranks nor the cut into micro-batches changes what is computed.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from grpo_cl.config import GRPOConfig
from grpo_cl.policy.batching import (
    Advantage,
    MicroBatch,
    Sample,
    checksum,
    collate,
    micro_batches,
    policy_samples,
    spread,
)
from grpo_cl.policy.loss import LossBatch, policy_loss
from grpo_cl.policy.model import PolicyModel
from grpo_cl.policy.optimizer import Descent, LearnerState, Optimizer, Transform, summary
from grpo_cl.policy.peaks import Meter, Peaks, meter_of
from grpo_cl.policy.ranks import Ranks
from grpo_cl.policy.sharding import drop_whole, shard_policy
from grpo_cl.policy.tally import Tally, added
from grpo_cl.types import TrajectoryGroup

Auxiliary = Callable[[PolicyModel], Tensor | None]
"""A penalty on the policy, the same on every rank, that is added to the loss of each update.

Of a sharded policy's weights it must be computed as they are, without ``full_tensor``."""


class Learner:
    """Improves a policy; holds what outlives an update."""

    def __init__(
        self,
        policy: PolicyModel,
        config: GRPOConfig,
        ranks: Ranks,
        *,
        shard: bool = False,
        meter: Meter | None = None,
    ) -> None:
        self.policy = policy
        self.config = config
        self.ranks = ranks
        self._is_sharded = shard and ranks.world_size > 1
        if self._is_sharded:
            shard_policy(policy.module, ranks)
        self._optimizer = Optimizer(policy.trainable(), config)
        self._peaks = Peaks(meter or meter_of(policy.device))

    def update(
        self,
        groups: Sequence[TrajectoryGroup],
        advantages: Sequence[Sequence[Advantage]],
        *,
        auxiliary: Auxiliary | None = None,
        transform: Transform | None = None,
    ) -> dict[str, float]:
        """Learn from the global batch, the same on every rank, ``updates_per_batch`` times.

        A trajectory whose advantage is None is left out. With nothing to learn from and no
        penalty no step is made: momentum alone must not move the weights.
        """
        samples = policy_samples(groups, advantages, self.config)
        tally = Tally()
        olds: list[Tensor] = []
        descents: list[Descent] = []
        with self.learning(samples) as (batches, numbers):
            references = self._reference_logprobs(batches)
            self._peaks.end("score")
            for _ in range(self.config.loss.updates_per_batch):
                losses = self._losses(batches, references, olds, tally)
                made = self.descend(losses, samples, auxiliary=auxiliary, transform=transform)
                descents += [made] if made else []
                if made is None or not made.is_sound:
                    break  # the same batch would do the same again
        return {**tally.summary(self.ranks), **summary(descents), **numbers}

    def state_dict(self) -> LearnerState:
        """What an exact resume needs besides the policy's weights; all ranks ask together."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state: LearnerState) -> None:
        """Go on from ``state_dict``; the policy's weights are loaded by the policy itself."""
        self._optimizer.load_state_dict(state)

    def weights(self) -> dict[str, Tensor]:
        """Copies of the weights that learn, by name."""
        return self._optimizer.weights()

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Go on from other weights of the same names."""
        self._optimizer.load_weights(weights)
        drop_whole(self.policy.module)

    def forget_moments(self) -> None:
        """Let the optimizer begin anew."""
        self._optimizer.forget()

    @property
    def learning_rate(self) -> float:
        """Of the next update."""
        return self._optimizer.learning_rate

    @contextmanager
    def learning(
        self, samples: Sequence[Sample]
    ) -> Generator[tuple[list[MicroBatch], dict[str, float]]]:
        """The passes of this rank over a global batch, and numbers, complete at the end."""
        self._check_agreement(samples)
        started = time.perf_counter()
        numbers: dict[str, float] = {}
        self._peaks.end("sample")
        yield self._passes(samples), numbers
        self._peaks.end("update")
        numbers |= self.ranks.maximum(self._peaks.take())
        numbers["tokens"] = float(sum(sample.trace.mask.count(True) for sample in samples))
        numbers["update_s"] = time.perf_counter() - started

    def descend(
        self,
        losses: Iterable[Tensor],
        samples: Sequence[Sample],
        *,
        auxiliary: Auxiliary | None = None,
        transform: Transform | None = None,
    ) -> Descent | None:
        """One optimizer step on the sum of this rank's losses and every other rank's.

        Each loss is computed when the one before it has been differentiated. None if neither
        ``samples``, the global batch, nor the penalty gave anything to learn from.
        """
        self._optimizer.clear()
        with self._training():
            found: list[Tensor] = []
            for loss in losses:
                loss.backward()
                found.append(loss.detach())
            penalty = auxiliary(self.policy) if auxiliary else None
            share = 0.0 if penalty is None else self._differentiate(penalty)
            total = added(found) + share
        if not samples and penalty is None:
            return None
        self.ranks.all_reduce_gradients(self._optimizer.parameters.values())
        return self._optimizer.descend(self.ranks.sum({"loss": total})["loss"], transform)

    def gradients(self, losses: Iterable[Tensor]) -> dict[str, Tensor]:
        """Gradients of the sum of this rank's losses, by name, without a step.

        Those of a sharded policy are summed over all ranks, as FSDP makes them.
        """
        self._optimizer.clear()
        with self._training():
            for loss in losses:
                loss.backward()
        parameters = self._optimizer.parameters.items()
        found = {
            name: torch.zeros_like(given) if given.grad is None else given.grad
            for name, given in parameters
        }
        self._optimizer.clear()
        return found

    def _differentiate(self, penalty: Tensor) -> float:
        """Add a penalty that every rank computes alike, so that all together count it once."""
        is_whole = isinstance(penalty, DTensor)  # its gradients go to the shards, unsummed
        share = penalty if is_whole else penalty / self.ranks.world_size
        share.backward()
        return (penalty.full_tensor() if is_whole else penalty).item() / self.ranks.world_size

    def _passes(self, samples: Sequence[Sample]) -> list[MicroBatch]:
        budget = self.config.optimizer.micro_batch_tokens
        plans = [micro_batches(share, budget) for share in spread(samples, self.ranks.world_size)]
        own = plans[self.ranks.rank]
        if self._is_sharded and samples:
            # Every rank takes part in every call of the module: one that is done goes on with a
            # sample of no weight.
            idle = min(samples, key=lambda sample: sample.length)._replace(weight=0.0)
            own += [[idle]] * (max(map(len, plans)) - len(own))
        return [collate(part, self.policy.device) for part in own]

    def _losses(
        self,
        batches: Sequence[MicroBatch],
        references: Sequence[Tensor | None],
        olds: list[Tensor],
        tally: Tally,
    ) -> Iterator[Tensor]:
        """The losses of one update; the first one's log-probs are kept in ``olds``.

        All passes of the first update see the weights that the batch was met with, so its own
        log-probs are the old ones and no pass is made only for them.
        """
        for number, batch in enumerate(batches):
            scores = self.policy.logprobs(
                batch.ids_BT,
                batch.attention_BT,
                temperature=self.config.temperature,
                mask_BT=batch.mask_BT,
                layout=batch.layout,
            )
            if len(olds) == number:
                olds.append(scores.logprobs_BT.detach())
            given = LossBatch(
                logprobs_BT=scores.logprobs_BT,
                old_logprobs_BT=olds[number],
                sampler_logprobs_BT=batch.sampler_logprobs_BT,
                reference_logprobs_BT=references[number],
                advantages_BT=batch.advantages_BT,
                mask_BT=batch.mask_BT,
                weights_B=batch.weights_B,
            )
            result = policy_loss(given, self.config.loss, self.config.kl_coef)
            tally.add(result, scores.entropy_BT, batch.mask_BT & (batch.weights_B != 0)[:, None])
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
    def _training(self) -> Generator[None]:
        """Training mode, with a seed of its own for dropout.

        The seed follows from the number of updates, so a resumed run drops the same.
        """
        device = self.policy.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(hash((self.config.seed, self._optimizer.updates, self.ranks.rank)))
            self.policy.module.train()
            try:
                yield
            finally:
                self.policy.module.eval()

    def _check_agreement(self, samples: Sequence[Sample]) -> None:
        if self.ranks.world_size == 1:
            return
        # Also where ranks wait for the slowest before the first collective with a short limit.
        assert len(set(self.ranks.gather(checksum(samples)))) == 1, (
            "the ranks were given different batches"
        )
