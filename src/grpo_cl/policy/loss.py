"""The GRPO family of losses on tensors, as sums that add up over micro-batches and ranks.

Formulas in docs/grpo.md. Shapes: B sequences of a micro-batch, T token positions. Positions off
the mask may hold anything, even nan: they are replaced before the first operation, since a nan
times a zero mask, or its gradient, is still nan.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from grpo_cl.config import LossConfig
from grpo_cl.types import TokenTrace

LossKind = Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo"]
KLEstimator = Literal["k1", "k2", "k3"]

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped here before exp; beyond it float32 overflows into inf · 0 = nan."""


class LossBatch(NamedTuple):
    """What a micro-batch is learned from; entry t concerns token t given the ones before."""

    logprobs_BT: Tensor
    """Of the policy being updated; the only tensor that gets a gradient."""
    old_logprobs_BT: Tensor
    """Of the policy before the first update on this batch."""
    sampler_logprobs_BT: Tensor
    """As reported when the tokens were drawn."""
    reference_logprobs_BT: Tensor | None
    advantages_BT: Tensor
    mask_BT: Tensor
    """True on the tokens the policy produced."""
    weights_B: Tensor
    """From ``sequence_weights`` over the whole global batch; 0 leaves a sequence out."""


@dataclass(frozen=True, kw_only=True)
class LossMetrics:
    """Sums over tokens; add them over micro-batches and ranks, then take the ``summary``."""

    tokens: float = 0.0
    clipped_low: float = 0.0
    """Tokens whose ratio is held at the lower bound."""
    clipped_high: float = 0.0
    ratio: float = 0.0
    importance: float = 0.0
    """Weights of the sampler/trainer correction; 1 per token where there is none."""
    mismatch_kl: float = 0.0
    """Of the trainer's old policy from the sampler's, by k3."""
    kl: float = 0.0
    """Of the policy from the reference, by the configured estimator."""
    kl_tokens: float = 0.0
    """Tokens that had a reference."""
    ratio_max: float = 0.0
    """The one entry that is a maximum."""

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "LossMetrics":
        """Those of a ``LossResult``."""
        names = (field.name for field in fields(cls))
        return cls(**dict(zip(names, numbers, strict=True)))

    def __add__(self, other: "LossMetrics") -> "LossMetrics":
        return LossMetrics(
            tokens=self.tokens + other.tokens,
            clipped_low=self.clipped_low + other.clipped_low,
            clipped_high=self.clipped_high + other.clipped_high,
            ratio=self.ratio + other.ratio,
            importance=self.importance + other.importance,
            mismatch_kl=self.mismatch_kl + other.mismatch_kl,
            kl=self.kl + other.kl,
            kl_tokens=self.kl_tokens + other.kl_tokens,
            ratio_max=max(self.ratio_max, other.ratio_max),
        )

    def summary(self) -> dict[str, float]:
        """Means per token under their logged names; what was not measured is absent."""
        if not self.tokens:
            return {"loss/tokens": 0.0}
        named = {
            "loss/tokens": self.tokens,
            "loss/clip_fraction": (self.clipped_low + self.clipped_high) / self.tokens,
            "loss/clip_fraction_low": self.clipped_low / self.tokens,
            "loss/clip_fraction_high": self.clipped_high / self.tokens,
            "loss/ratio_mean": self.ratio / self.tokens,
            "loss/ratio_max": self.ratio_max,
            "loss/importance_mean": self.importance / self.tokens,
            "loss/mismatch_kl": self.mismatch_kl / self.tokens,
        }
        return named | ({"loss/kl": self.kl / self.kl_tokens} if self.kl_tokens else {})


class LossResult(NamedTuple):
    """A micro-batch's part of the loss, to be summed, and its numbers."""

    loss: Tensor
    numbers: Tensor
    """Of ``metrics``, as they are on the device; to read them is to wait for it."""

    @property
    def metrics(self) -> LossMetrics:
        """Sums over this micro-batch's tokens."""
        return LossMetrics.of(self.numbers.tolist())


def loss_lengths(traces: Sequence[TokenTrace], *, overlong: Literal["keep", "mask"]) -> list[int]:
    """Tokens each episode is learned from; none where a reply cut off by a limit is masked."""
    return [
        0 if overlong == "mask" and trace.is_truncated else trace.mask.count(True)
        for trace in traces
    ]


def sequence_weights(
    lengths: Sequence[int], kind: LossKind, *, max_tokens: int
) -> tuple[float, ...]:
    """What a token of each sequence counts, from the lengths of the whole global batch.

    A sequence of length 0 weighs nothing and is in no denominator, as if it were not there.
    ``max_tokens`` is the constant length that ``dr_grpo`` divides by.
    """
    count = sum(length > 0 for length in lengths)
    total = sum(lengths)

    def weight(length: int) -> float:
        if kind in ("dapo", "cispo"):
            return 1 / total
        # GSPO has one term per sequence; its tokens share it equally.
        return 1 / (count * (max_tokens if kind == "dr_grpo" else length))

    return tuple(weight(length) if length else 0.0 for length in lengths)


def policy_loss(batch: LossBatch, config: LossConfig, kl_coef: float) -> LossResult:
    """The part of the loss that this micro-batch's sequences contribute."""
    if kl_coef and batch.reference_logprobs_BT is None:
        raise ValueError(
            f"kl_coef {kl_coef} needs the reference's log-probs; give them or set kl_coef to 0"
        )
    clean = _cleaned(batch)
    ratio_BT = _ratio(clean, config.kind)
    importance_BT = _importance(clean, config.importance_cap)
    terms_BT = importance_BT * _policy_terms(clean, ratio_BT, config)
    kl_BT = None
    if clean.reference_logprobs_BT is not None:
        kl_BT = kl_terms(clean.logprobs_BT, clean.reference_logprobs_BT, config.kl_estimator)
        if kl_coef:  # 0 · inf would still be nan
            terms_BT = terms_BT + kl_coef * kl_BT
    # Off the mask advantage and log-ratios are 0, and so is every term.
    loss = (clean.weights_B * terms_BT.sum(dim=1)).sum()
    with torch.no_grad():
        numbers = _numbers(clean, ratio_BT, importance_BT, kl_BT, config)
    return LossResult(loss, numbers)


def kl_terms(logprobs_BT: Tensor, reference_BT: Tensor, estimator: KLEstimator) -> Tensor:
    """A one-sample estimate of KL(policy, reference) per token, with that estimate's gradient."""
    log_ratio_BT = reference_BT - logprobs_BT
    if estimator == "k1":
        return -log_ratio_BT
    if estimator == "k2":
        return log_ratio_BT.square() / 2
    bounded_BT = log_ratio_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return torch.expm1(bounded_BT) - bounded_BT


def _cleaned(batch: LossBatch) -> LossBatch:
    """The batch in float32 or better, constants detached, zeros wherever nothing is learned."""
    _check_shapes(batch)
    dtype = torch.promote_types(batch.logprobs_BT.dtype, torch.float32)
    weights_B = batch.weights_B.detach().to(dtype)
    mask_BT = batch.mask_BT.bool() & (weights_B != 0)[:, None]
    off_BT = ~mask_BT

    def clean(values_BT: Tensor) -> Tensor:
        return values_BT.to(dtype).masked_fill(off_BT, 0.0)

    reference_BT = batch.reference_logprobs_BT
    return LossBatch(
        logprobs_BT=clean(batch.logprobs_BT),
        old_logprobs_BT=clean(batch.old_logprobs_BT.detach()),
        sampler_logprobs_BT=clean(batch.sampler_logprobs_BT.detach()),
        reference_logprobs_BT=None if reference_BT is None else clean(reference_BT.detach()),
        advantages_BT=clean(batch.advantages_BT.detach()),
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
                f"give it {tuple(expected)}, nothing is broadcast"
            )


def _ratio(batch: LossBatch, kind: LossKind) -> Tensor:
    logprobs_BT = batch.logprobs_BT
    log_ratio_BT = logprobs_BT - batch.old_logprobs_BT
    if kind == "gspo":
        lengths_B = batch.mask_BT.sum(dim=1).clamp(min=1)
        mean_B = log_ratio_BT.detach().sum(dim=1) / lengths_B
        # GSPO-token: the sequence's ratio in value, the token's own in gradient, so that credit
        # per action reaches its tokens; with one advantage per sequence it is plain GSPO.
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


def _numbers(
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
    if config.kind != "cispo":  # the pessimistic minimum holds a ratio on one side only
        low_BT, high_BT = low_BT & (advantages_BT < 0), high_BT & (advantages_BT > 0)
    mismatch_BT = kl_terms(batch.sampler_logprobs_BT, batch.old_logprobs_BT, "k3")

    def total(values_BT: Tensor) -> Tensor:
        return values_BT.masked_fill(off_BT, 0).double().sum()

    tokens = mask_BT.double().sum()
    nothing = torch.zeros_like(tokens)
    summed = (low_BT, high_BT, ratio_BT, importance_BT, mismatch_BT)
    numbers = [tokens, *map(total, summed)]
    numbers += [nothing, nothing] if kl_BT is None else [total(kl_BT), tokens]
    return torch.stack([*numbers, ratio_BT.masked_fill(off_BT, 0.0).double().max()])
