"""Batches for tests of the loss."""

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from grpo_cl.config import LossConfig
from grpo_cl.policy.learner.loss import KLEstimator, LossBatch, LossKind, sequence_weights

KINDS: tuple[LossKind, ...] = ("grpo", "dr_grpo", "dapo", "gspo", "cispo")
ESTIMATORS: tuple[KLEstimator, ...] = ("k1", "k2", "k3")
MAX_TOKENS = 10
EVERY_PAIR = list(product(KINDS, ESTIMATORS))


def options(
    kind: LossKind, *, estimator: KLEstimator = "k3", cap: float | None = None
) -> LossConfig:
    return LossConfig(kind=kind, kl_estimator=estimator, importance_cap=cap)


def map_values(batch: LossBatch, change: Callable[[Tensor], Tensor]) -> LossBatch:
    """The batch with ``change`` applied to log-probs and advantages."""
    reference = batch.reference_logprobs_BT
    return LossBatch(
        logprobs_BT=change(batch.logprobs_BT),
        old_logprobs_BT=change(batch.old_logprobs_BT),
        sampler_logprobs_BT=change(batch.sampler_logprobs_BT),
        reference_logprobs_BT=None if reference is None else change(reference),
        advantages_BT=change(batch.advantages_BT),
        mask_BT=batch.mask_BT,
        weights_B=batch.weights_B,
    )


def take(batch: LossBatch, rows: list[int], width: int) -> LossBatch:
    """Some sequences of the batch, padded to ``width``."""
    selected = map_values(batch, lambda values: values[rows, :width])
    return selected._replace(mask_BT=batch.mask_BT[rows, :width], weights_B=batch.weights_B[rows])


def gradient_of(loss: Tensor, batch: LossBatch) -> Tensor:
    return torch.autograd.grad(loss, batch.logprobs_BT)[0]


def random_batch(
    seed: int, *, kind: LossKind, rows: int = 4, columns: int = 5, scalar: bool = False
) -> LossBatch:
    """Sequences of random lengths with ratios on both sides of both bounds."""
    generator = torch.Generator().manual_seed(seed)

    def normal(scale: float) -> Tensor:
        return scale * torch.randn(rows, columns, generator=generator, dtype=torch.float64)

    old = -normal(1.0).abs() - 0.1
    lengths = torch.randint(1, columns + 1, (rows,), generator=generator)
    advantages = normal(1.0)
    weights = sequence_weights(lengths.tolist(), kind, max_tokens=MAX_TOKENS)
    return LossBatch(
        logprobs_BT=(old + normal(0.4)).requires_grad_(),
        old_logprobs_BT=old,
        sampler_logprobs_BT=old + normal(0.6),
        reference_logprobs_BT=old + normal(0.5),
        advantages_BT=advantages[:, :1].expand(rows, columns) if scalar else advantages,
        mask_BT=torch.arange(columns) < lengths[:, None],
        weights_B=torch.tensor(weights, dtype=torch.float64),
    )
