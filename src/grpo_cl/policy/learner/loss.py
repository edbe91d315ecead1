"""The GRPO family of losses, as sums that add up over micro-batches and ranks.

Formulas in docs/grpo.md. Shapes: B sequences of a micro-batch, T token positions. Positions off
the mask may hold any value, nan included: they are replaced before the first operation, since a nan
times a zero mask, or its gradient, is still nan.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from grpo_cl.config import LossConfig
from grpo_cl.policy.learner.metric_accumulator import LossMetrics
from grpo_cl.types import TokenTrace

LossKind = Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo"]
KLEstimator = Literal["k1", "k2", "k3"]

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped here before exp; beyond it float32 overflows into inf · 0 = nan."""


class LossBatch(NamedTuple):
    """The inputs of the loss of a micro-batch; entry t is of token t given the tokens before it."""

    logprobs_BT: Tensor
    """Of the policy being updated; the only tensor with a gradient."""
    old_logprobs_BT: Tensor
    """Of the policy before the first update on this batch."""
    sampler_logprobs_BT: Tensor
    """As reported by the sampler when it generated the tokens."""
    reference_logprobs_BT: Tensor | None
    advantages_BT: Tensor
    mask_BT: Tensor
    """True on the tokens that the policy generated."""
    weights_B: Tensor
    """From ``sequence_weights`` over the global batch; 0 leaves a sequence out."""


class LossResult(NamedTuple):
    """The loss of a micro-batch, to be summed over micro-batches, and its metrics."""

    loss: Tensor
    metric_sums: Tensor
    """The fields of ``LossMetrics`` on the device; reading them synchronises with it."""

    @property
    def metrics(self) -> LossMetrics:
        """Sums over this micro-batch's tokens."""
        return LossMetrics.from_sums(self.metric_sums.tolist())


def loss_lengths(traces: Sequence[TokenTrace], *, overlong: Literal["keep", "mask"]) -> list[int]:
    """Loss tokens of each episode; 0 for truncated episodes if ``overlong`` masks them."""
    return [
        0 if overlong == "mask" and trace.is_truncated else trace.mask.count(True)
        for trace in traces
    ]


def sequence_weights(
    lengths: Sequence[int], kind: LossKind, *, max_tokens: int
) -> tuple[float, ...]:
    """The loss weight of a token of each sequence, from the lengths of the global batch.

    A sequence of length 0 has weight 0 and is in no denominator. ``max_tokens`` is the constant
    length that ``dr_grpo`` divides by.
    """
    count = sum(length > 0 for length in lengths)
    total = sum(lengths)

    def weight(length: int) -> float:
        if kind in ("dapo", "cispo"):
            return 1 / total
        # GSPO has one term per sequence, split equally over its tokens.
        return 1 / (count * (max_tokens if kind == "dr_grpo" else length))

    return tuple(weight(length) if length else 0.0 for length in lengths)


def policy_loss(batch: LossBatch, config: LossConfig, kl_coef: float) -> LossResult:
    """The sum of the loss terms of this micro-batch's sequences."""
    if kl_coef and batch.reference_logprobs_BT is None:
        raise ValueError(
            f"kl_coef {kl_coef} needs reference log-probs; pass them or set kl_coef to 0"
        )
    masked = _masked(batch)
    ratio_BT = _ratio(masked, config.kind)
    importance_BT = _importance(masked, config.importance_cap)
    terms_BT = importance_BT * _policy_terms(masked, ratio_BT, config)
    kl_BT = None
    if masked.reference_logprobs_BT is not None:
        kl_BT = kl_terms(masked.logprobs_BT, masked.reference_logprobs_BT, config.kl_estimator)
        if kl_coef:  # 0 · inf would still be nan
            terms_BT = terms_BT + kl_coef * kl_BT
    # Off the mask advantages and log-ratios are 0, and so is every term.
    loss = (masked.weights_B * terms_BT.sum(dim=1)).sum()
    with torch.no_grad():
        metric_sums = _metric_sums(masked, ratio_BT, importance_BT, kl_BT, config)
    return LossResult(loss, metric_sums)


def kl_terms(logprobs_BT: Tensor, reference_BT: Tensor, estimator: KLEstimator) -> Tensor:
    """A one-sample estimate of KL(policy, reference) per token; gradients are the estimate's."""
    log_ratio_BT = reference_BT - logprobs_BT
    if estimator == "k1":
        return -log_ratio_BT
    if estimator == "k2":
        return log_ratio_BT.square() / 2
    bounded_BT = log_ratio_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return torch.expm1(bounded_BT) - bounded_BT


def _masked(batch: LossBatch) -> LossBatch:
    """The batch in at least float32, constants detached, zeros off the mask."""
    _check_shapes(batch)
    dtype = torch.promote_types(batch.logprobs_BT.dtype, torch.float32)
    weights_B = batch.weights_B.detach().to(dtype)
    mask_BT = batch.mask_BT.bool() & (weights_B != 0)[:, None]
    off_BT = ~mask_BT

    def masked(values_BT: Tensor) -> Tensor:
        return values_BT.to(dtype).masked_fill(off_BT, 0.0)

    reference_BT = batch.reference_logprobs_BT
    return LossBatch(
        logprobs_BT=masked(batch.logprobs_BT),
        old_logprobs_BT=masked(batch.old_logprobs_BT.detach()),
        sampler_logprobs_BT=masked(batch.sampler_logprobs_BT.detach()),
        reference_logprobs_BT=None if reference_BT is None else masked(reference_BT.detach()),
        advantages_BT=masked(batch.advantages_BT.detach()),
        mask_BT=mask_BT,
        weights_B=weights_B,
    )


def _check_shapes(batch: LossBatch) -> None:
    shape = batch.logprobs_BT.shape
    for name, values in batch._asdict().items():
        expected = shape[:1] if name == "weights_B" else shape
        if values is not None and values.shape != expected:
            raise ValueError(
                f"{name} has shape {tuple(values.shape)} beside log-probs of {tuple(shape)}; "
                f"pass shape {tuple(expected)}, nothing is broadcast"
            )


def _ratio(batch: LossBatch, kind: LossKind) -> Tensor:
    logprobs_BT = batch.logprobs_BT
    log_ratio_BT = logprobs_BT - batch.old_logprobs_BT
    if kind == "gspo":
        lengths_B = batch.mask_BT.sum(dim=1).clamp(min=1)
        mean_B = log_ratio_BT.detach().sum(dim=1) / lengths_B
        # GSPO-token: the value is the sequence ratio, the gradient is the token's own, so that
        # advantages per turn reach their tokens; with one advantage per sequence it equals GSPO.
        log_ratio_BT = mean_B[:, None] + (logprobs_BT - logprobs_BT.detach())
    return log_ratio_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def _importance(batch: LossBatch, cap: float | None) -> Tensor:
    if cap is None:
        return torch.ones_like(batch.old_logprobs_BT)
    return (batch.old_logprobs_BT - batch.sampler_logprobs_BT).exp().clamp(max=cap)


def _policy_terms(batch: LossBatch, ratio_BT: Tensor, config: LossConfig) -> Tensor:
    clipped_BT = ratio_BT.clamp(1 - config.epsilon_low, 1 + config.epsilon_high)
    if config.kind == "cispo":
        return -clipped_BT.detach() * batch.advantages_BT * batch.logprobs_BT
    return -torch.minimum(ratio_BT * batch.advantages_BT, clipped_BT * batch.advantages_BT)


def _metric_sums(
    batch: LossBatch,
    ratio_BT: Tensor,
    importance_BT: Tensor,
    kl_BT: Tensor | None,
    config: LossConfig,
) -> Tensor:
    """The fields of ``LossMetrics``, in their order."""
    mask_BT, advantages_BT = batch.mask_BT, batch.advantages_BT
    off_BT = ~mask_BT
    low_BT = ratio_BT < 1 - config.epsilon_low
    high_BT = ratio_BT > 1 + config.epsilon_high
    if config.kind != "cispo":  # the minimum clips a ratio on one side only
        low_BT, high_BT = low_BT & (advantages_BT < 0), high_BT & (advantages_BT > 0)
    mismatch_BT = kl_terms(batch.sampler_logprobs_BT, batch.old_logprobs_BT, "k3")

    def total(values_BT: Tensor) -> Tensor:
        return values_BT.masked_fill(off_BT, 0).double().sum()

    tokens = mask_BT.double().sum()
    zero = torch.zeros_like(tokens)
    values = (low_BT, high_BT, ratio_BT, importance_BT, mismatch_BT)
    sums = [tokens, *map(total, values)]
    sums += [zero, zero] if kl_BT is None else [total(kl_BT), tokens]
    return torch.stack([*sums, ratio_BT.masked_fill(off_BT, 0.0).double().max()])
