import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from grpo_cl.policy.learner.loss import (
    KLEstimator,
    LossBatch,
    LossKind,
    kl_terms,
    loss_lengths,
    policy_loss,
    sequence_weights,
)
from grpo_cl.policy.learner.metric_accumulator import LossMetrics
from grpo_cl.types import TokenTrace
from loss_batches import KINDS, MAX_TOKENS, options, random_batch


def worked_batch(kind: LossKind) -> LossBatch:
    """Two sequences of three tokens and one; every token had probability 0.4 before.

    Probabilities now: 0.6, 0.4, 0.2 with advantage 1, and 0.2 with advantage -2, so the ratios are
    1.5, 1, 0.5 and 0.5.
    """
    now = [[0.6, 0.4, 0.2], [0.2, 1.0, 1.0]]
    logprobs = torch.tensor(now, dtype=torch.float64).log().requires_grad_()
    old = torch.full((2, 3), 0.4, dtype=torch.float64).log()
    return LossBatch(
        logprobs_BT=logprobs,
        old_logprobs_BT=old,
        sampler_logprobs_BT=old,
        reference_logprobs_BT=None,
        advantages_BT=torch.tensor([[1.0, 1.0, 1.0], [-2.0, 5.0, 5.0]], dtype=torch.float64),
        mask_BT=torch.tensor([[True, True, True], [True, False, False]]),
        weights_B=torch.tensor(
            sequence_weights([3, 1], kind, max_tokens=MAX_TOKENS), dtype=torch.float64
        ),
    )


# Clipped at 0.8 and 1.28, the first sequence gains min(1.5, 1.28) + 1 + min(0.5, 0.8) = 2.78 and
# the second min(0.5 · -2, 0.8 · -2) = -1.6. The loss is minus the weighted gain: grpo takes the
# mean of the sequences' means, dapo divides by the 4 tokens, dr_grpo by 2 sequences of 10. The
# sequence ratios of gspo are (1.5 · 1 · 0.5)^(1/3) = 0.75^(1/3), within bounds, and 0.5 as above.
# The weights of cispo are 1.28, 1, 0.8 and 0.8, times advantage, times the log-probability now.
WORKED_LOSS = {
    "grpo": -(2.78 / 3 - 1.6) / 2,
    "dapo": -(2.78 - 1.6) / 4,
    "dr_grpo": -(2.78 - 1.6) / 20,
    "gspo": -(0.75 ** (1 / 3) - 1.6) / 2,
    "cispo": -(1.28 * math.log(0.6) + math.log(0.4) + 0.8 * math.log(0.2) - 2 * 0.8 * math.log(0.2))
    / 4,
}

# d ratio / d log-prob = ratio. The clipped tokens, the first and the fourth, have no gradient,
# except in cispo, which clips the weight and not the gradient.
WORKED_GRADIENT = {
    "grpo": [0.0, -1 / 6, -0.5 / 6, 0.0],
    "dapo": [0.0, -1 / 4, -0.5 / 4, 0.0],
    "dr_grpo": [0.0, -1 / 20, -0.5 / 20, 0.0],
    "gspo": [-(0.75 ** (1 / 3)) / 6] * 3 + [0.0],
    "cispo": [-1.28 / 4, -1 / 4, -0.8 / 4, 1.6 / 4],
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_loss_and_its_gradient_equal_hand_computed_values(kind: LossKind):
    batch = worked_batch(kind)
    loss = policy_loss(batch, options(kind), 0.0).loss
    loss.backward()
    assert loss.item() == pytest.approx(WORKED_LOSS[kind], abs=1e-12)
    assert batch.logprobs_BT.grad is not None
    gradient = batch.logprobs_BT.grad[batch.mask_BT].tolist()
    assert gradient == pytest.approx(WORKED_GRADIENT[kind], abs=1e-12)


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        ("grpo", 1, 1),  # 0.5 with a negative advantage; 1.5 with a positive one
        ("gspo", 1, 0),  # the second sequence; the first sequence's ratio is 0.91
        ("cispo", 2, 1),  # every ratio out of bounds, whatever the advantage
    ],
)
def test_tokens_count_as_clipped_where_the_ratio_is_clipped(kind: LossKind, low: int, high: int):
    metrics = policy_loss(worked_batch(kind), options(kind), 0.0).metrics
    assert (metrics.clipped_low, metrics.clipped_high, metrics.tokens) == (low, high, 4)


def test_metrics_are_means_over_the_loss_tokens_under_the_keys_of_metrics_json():
    summary = policy_loss(worked_batch("dapo"), options("dapo"), 0.0).metrics.summary()
    assert summary == pytest.approx(
        {
            "clip_fraction": 2 / 4,
            "clip_fraction_low": 1 / 4,
            "clip_fraction_high": 1 / 4,
            "ratio_mean": (1.5 + 1 + 0.5 + 0.5) / 4,
            "ratio_max": 1.5,
            "importance_weight": 1,
            "mismatch_kl": 0,
        }
    )
    assert LossMetrics().summary() == {}


def test_sequence_weights_use_the_denominator_of_each_loss():
    lengths = [3, 1, 0]  # the third is left out: two sequences, four tokens
    assert sequence_weights(lengths, "grpo", max_tokens=10) == (1 / 6, 1 / 2, 0)
    assert sequence_weights(lengths, "gspo", max_tokens=10) == (1 / 6, 1 / 2, 0)
    assert sequence_weights(lengths, "dapo", max_tokens=10) == (1 / 4, 1 / 4, 0)
    assert sequence_weights(lengths, "cispo", max_tokens=10) == (1 / 4, 1 / 4, 0)
    assert sequence_weights(lengths, "dr_grpo", max_tokens=10) == (1 / 20, 1 / 20, 0)
    assert sequence_weights([0, 0], "dapo", max_tokens=10) == (0, 0)
    assert sequence_weights([], "grpo", max_tokens=10) == ()


def test_truncated_episode_has_loss_tokens_only_with_overlong_keep():
    whole = TokenTrace(ids=(1, 2), mask=(False, True), logprobs=(0.0,), turns=((1, 2),))
    truncated = whole.model_copy(update={"is_truncated": True})
    assert loss_lengths([whole, truncated], overlong="keep") == [1, 1]
    assert loss_lengths([whole, truncated], overlong="mask") == [1, 0]


def test_importance_weight_is_the_old_over_sampler_ratio_up_to_the_cap():
    # Old over sampler: 1.5, 4 (capped at 2), 0.5. Ratios are 1, advantages 1, three tokens:
    # loss = -(1.5 + 2 + 0.5) / 3, and the same weights scale the gradient.
    old = torch.tensor([[-1.0, -2.0, -3.0]], dtype=torch.float64)
    logprobs = old.clone().requires_grad_()
    correction = torch.tensor([[1.5, 4.0, 0.5]], dtype=torch.float64)
    batch = LossBatch(
        logprobs_BT=logprobs,
        old_logprobs_BT=old,
        sampler_logprobs_BT=old - correction.log(),
        reference_logprobs_BT=None,
        advantages_BT=torch.ones(1, 3),
        mask_BT=torch.ones(1, 3, dtype=torch.bool),
        weights_B=torch.tensor([1 / 3], dtype=torch.float64),
    )
    result = policy_loss(batch, options("dapo", cap=2.0), 0.0)
    loss, metrics = result.loss, result.metrics
    loss.backward()
    assert loss.item() == pytest.approx(-4 / 3)
    assert logprobs.grad is not None
    assert logprobs.grad[0].tolist() == pytest.approx([-1.5 / 3, -2 / 3, -0.5 / 3])
    assert metrics.summary()["importance_weight"] == pytest.approx(4 / 3)
    # k3 with samples of the sampler: ratio - 1 - log ratio.
    expected = sum(ratio - 1 - math.log(ratio) for ratio in (1.5, 4.0, 0.5)) / 3
    assert metrics.summary()["mismatch_kl"] == pytest.approx(expected)
    assert policy_loss(batch, options("dapo"), 0.0).loss.item() == pytest.approx(-1)


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [
        ("k1", -math.log(2), 1.0),  # -log(2), whose derivative by log π is 1
        ("k2", math.log(2) ** 2 / 2, -math.log(2)),
        ("k3", 2 - 1 - math.log(2), 1 - 2.0),
    ],
)
def test_each_kl_estimator_equals_hand_computed_values(
    estimator: KLEstimator, value: float, slope: float
):
    # The reference gives the one token twice the policy's probability.
    logprobs = torch.tensor([[0.25]], dtype=torch.float64).log().requires_grad_()
    batch = LossBatch(
        logprobs_BT=logprobs,
        old_logprobs_BT=logprobs,
        sampler_logprobs_BT=logprobs,
        reference_logprobs_BT=torch.tensor([[0.5]], dtype=torch.float64).log(),
        advantages_BT=torch.zeros(1, 1),
        mask_BT=torch.ones(1, 1),
        weights_B=torch.ones(1),
    )
    result = policy_loss(batch, options("dapo", estimator=estimator), 0.1)
    loss, metrics = result.loss, result.metrics
    loss.backward()
    assert logprobs.grad is not None
    assert loss.item() == pytest.approx(0.1 * value)
    assert logprobs.grad.item() == pytest.approx(0.1 * slope)
    assert metrics.summary()["kl"] == pytest.approx(value)
    without = policy_loss(batch, options("dapo", estimator=estimator), 0.0)
    assert without.loss.item() == 0
    assert without.metrics.summary()["kl"] == pytest.approx(value)


def expected_gradient(estimator: KLEstimator) -> tuple[list[float], ...]:
    """Gradients by the logits of π = (1/2, 1/4, 1/4) against a reference (1/4, 1/4, 1/2).

    The estimator's, in expectation over tokens of π; that of KL(π, ref); that of KL(ref, π).
    """
    reference = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)

    def gradient(divergence: Callable[[Tensor], Tensor]) -> list[float]:
        logits = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log().requires_grad_()
        divergence(torch.log_softmax(logits, 0)).backward()
        assert logits.grad is not None
        return logits.grad.tolist()

    return (
        gradient(
            lambda own: (own.exp().detach() * kl_terms(own, reference.log(), estimator)).sum()
        ),
        gradient(lambda own: (own.exp() * (own - reference.log())).sum()),
        gradient(lambda own: (reference * (reference.log() - own)).sum()),
    )


def test_only_k2_has_the_gradient_of_the_reverse_kl():
    k1, reverse, _ = expected_gradient("k1")
    k2, _, _ = expected_gradient("k2")
    k3, _, forward = expected_gradient("k3")
    assert k1 == pytest.approx([0, 0, 0], abs=1e-12)
    assert k2 == pytest.approx(reverse, abs=1e-12)
    assert k3 == pytest.approx(forward, abs=1e-12)
    assert k3 != pytest.approx(reverse, abs=0.02)


def test_log_probs_can_serve_as_their_own_old_log_probs():
    # Log-probs that serve as their own old ones: ratio 1, gradient -advantage · weight.
    batch = random_batch(2, kind="dapo")
    own = batch._replace(old_logprobs_BT=batch.logprobs_BT)
    result = policy_loss(own, options("dapo"), 0.0)
    result.loss.backward()
    assert result.metrics.summary()["ratio_max"] == 1
    expected = -batch.advantages_BT * batch.weights_B[:, None] * batch.mask_BT
    assert own.logprobs_BT.grad is not None
    assert torch.allclose(own.logprobs_BT.grad, expected)


def test_gspo_applies_turn_advantages_to_the_tokens_of_their_turn():
    # One sequence, ratios 1, two turns with advantages 1 and -1: weight 1 / (1 · 2).
    old = torch.tensor([[-1.0, -2.0]], dtype=torch.float64)
    batch = LossBatch(
        logprobs_BT=old.clone().requires_grad_(),
        old_logprobs_BT=old,
        sampler_logprobs_BT=old,
        reference_logprobs_BT=None,
        advantages_BT=torch.tensor([[1.0, -1.0]], dtype=torch.float64),
        mask_BT=torch.ones(1, 2, dtype=torch.bool),
        weights_B=torch.tensor(sequence_weights([2], "gspo", max_tokens=10)),
    )
    policy_loss(batch, options("gspo"), 0.0).loss.backward()
    assert batch.logprobs_BT.grad is not None
    assert batch.logprobs_BT.grad[0].tolist() == [-0.5, 0.5]


def test_kl_coefficient_without_reference_log_probs_is_an_error():
    with pytest.raises(ValueError, match=r"kl_coef 0.1 needs .* set kl_coef to 0"):
        policy_loss(worked_batch("grpo"), options("grpo"), 0.1)


def test_tensors_of_other_shapes_are_an_error_and_not_broadcast():
    batch = worked_batch("grpo")
    with pytest.raises(ValueError, match=r"advantages_BT has shape \(2, 1\) .* \(2, 3\)"):
        policy_loss(batch._replace(advantages_BT=batch.advantages_BT[:, :1]), options("grpo"), 0.0)
    with pytest.raises(ValueError, match=r"weights_B has shape \(1,\) .* pass shape \(2,\)"):
        policy_loss(batch._replace(weights_B=batch.weights_B[:1]), options("grpo"), 0.0)
