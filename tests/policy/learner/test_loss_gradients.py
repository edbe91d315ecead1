import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from grpo_cl.config import LossConfig
from grpo_cl.policy.learner.loss import (
    KLEstimator,
    LossBatch,
    LossKind,
    LossResult,
    policy_loss,
    sequence_weights,
)
from grpo_cl.policy.learner.metric_accumulator import LossMetrics
from loss_batches import (
    ESTIMATORS,
    EVERY_PAIR,
    KINDS,
    gradient_of,
    map_values,
    options,
    random_batch,
    take,
)


def scalar_loss(
    batch: LossBatch, config: LossConfig, kl_coef: float, moved: list[list[float]]
) -> float:
    """The loss at ``moved`` in scalar Python, stop-gradient parts kept at the batch's log-probs."""
    assert batch.reference_logprobs_BT is not None
    old, sampler = batch.old_logprobs_BT.tolist(), batch.sampler_logprobs_BT.tolist()
    reference, advantages = batch.reference_logprobs_BT.tolist(), batch.advantages_BT.tolist()
    here = batch.logprobs_BT.tolist()
    low, high = 1 - config.epsilon_low, 1 + config.epsilon_high
    total = 0.0
    for row, weight in enumerate(batch.weights_B.tolist()):
        tokens = [t for t, masked in enumerate(batch.mask_BT[row].tolist()) if masked]
        mean = sum(here[row][t] - old[row][t] for t in tokens) / len(tokens)
        for t in tokens:
            new, gain = moved[row][t], advantages[row][t]
            ratio = math.exp(new - old[row][t])
            if config.kind == "gspo":
                ratio = math.exp(mean + new - here[row][t])
            if config.kind == "cispo":
                fixed = math.exp(here[row][t] - old[row][t])
                term = -min(max(fixed, low), high) * gain * new
            else:
                term = -min(ratio * gain, min(max(ratio, low), high) * gain)
            if config.importance_cap is not None:
                term *= min(math.exp(old[row][t] - sampler[row][t]), config.importance_cap)
            difference = reference[row][t] - new
            kl = {
                "k1": -difference,
                "k2": difference**2 / 2,
                "k3": math.exp(difference) - 1 - difference,
            }
            total += weight * (term + kl_coef * kl[config.kl_estimator])
    return total


@pytest.mark.parametrize(("kind", "estimator"), EVERY_PAIR)
def test_gradients_equal_finite_differences(kind: LossKind, estimator: KLEstimator):
    config = options(kind, estimator=estimator, cap=1.5)
    for seed in range(3):
        batch = random_batch(seed, kind=kind)
        loss = policy_loss(batch, config, 0.3).loss
        loss.backward()
        here = batch.logprobs_BT.tolist()
        assert loss.item() == pytest.approx(scalar_loss(batch, config, 0.3, here), abs=1e-12)
        assert batch.logprobs_BT.grad is not None
        for row, column in product(range(4), range(5)):
            sides: list[float] = []
            for step in (1e-5, -1e-5):
                moved = [list(values) for values in here]
                moved[row][column] += step
                sides.append(scalar_loss(batch, config, 0.3, moved))
            slope = (sides[0] - sides[1]) / 2e-5
            assert batch.logprobs_BT.grad[row, column].item() == pytest.approx(slope, abs=1e-8)


@pytest.mark.parametrize(("kind", "estimator"), list(product(KINDS[:4], ESTIMATORS)))
def test_autograd_equals_the_derivative_of_losses_without_stop_gradients(
    kind: LossKind, estimator: KLEstimator
):
    # With one advantage per sequence GSPO-token is GSPO, whose gradient is that of its own value.
    batch = random_batch(7, kind=kind, scalar=True)
    config = options(kind, estimator=estimator, cap=1.5 if kind != "gspo" else None)

    def loss(logprobs: Tensor) -> Tensor:
        return policy_loss(batch._replace(logprobs_BT=logprobs), config, 0.3).loss

    assert torch.autograd.gradcheck(loss, (batch.logprobs_BT,))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(seed=st.integers(0, 1000), groups=st.lists(st.integers(0, 2), min_size=6, max_size=6))
def test_micro_batches_sum_to_the_batch_for_every_split(
    kind: LossKind, seed: int, groups: list[int]
):
    config = options(kind, cap=2.0)
    whole = random_batch(seed, kind=kind, rows=6)
    expected = policy_loss(whole, config, 0.1)
    results: list[LossResult] = []
    for group in set(groups):
        rows = [row for row in range(6) if groups[row] == group]
        width = int(whole.mask_BT[rows].sum(dim=1).max())  # each is padded to its own length
        results.append(policy_loss(take(whole, rows, width), config, 0.1))
    total = torch.stack([result.loss for result in results]).sum()
    summed, gradient = gradient_of(total, whole), gradient_of(expected.loss, whole)

    assert total.item() == pytest.approx(expected.loss.item(), abs=1e-12)
    assert torch.allclose(summed, gradient, rtol=0, atol=1e-14)
    metrics = sum((result.metrics for result in results), LossMetrics())
    assert metrics.summary() == pytest.approx(expected.metrics.summary(), abs=1e-12)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize(("kind", "estimator"), EVERY_PAIR)
def test_values_off_the_mask_do_not_change_loss_and_gradients(
    kind: LossKind, estimator: KLEstimator, value: float
):
    config = options(kind, estimator=estimator, cap=2.0)
    clean = random_batch(3, kind=kind)
    dirty = map_values(
        clean, lambda values: torch.where(clean.mask_BT, values.detach(), value).requires_grad_()
    )
    result, dirty_result = policy_loss(clean, config, 0.1), policy_loss(dirty, config, 0.1)
    gradient = gradient_of(result.loss, clean)
    dirty_gradient = gradient_of(dirty_result.loss, dirty)
    assert torch.equal(dirty_result.loss, result.loss)
    assert torch.equal(dirty_gradient, gradient)
    assert (dirty_gradient[~clean.mask_BT] == 0).all()
    assert dirty_result.metrics == result.metrics


@pytest.mark.parametrize("kind", KINDS)
def test_sequence_of_weight_zero_equals_a_batch_without_it(kind: LossKind):
    batch = random_batch(5, kind=kind)
    lengths = batch.mask_BT.sum(dim=1).tolist()
    lengths[1] = 0
    weights = torch.tensor(sequence_weights(lengths, kind, max_tokens=10), dtype=torch.float64)
    with_nan = batch.logprobs_BT.detach().clone()
    with_nan[1] = math.nan
    left_out = batch._replace(logprobs_BT=with_nan.requires_grad_(), weights_B=weights)
    others = take(left_out, [0, 2, 3], width=5)
    config = options(kind)
    result, expected = policy_loss(left_out, config, 0.1), policy_loss(others, config, 0.1)
    assert result.loss.item() == pytest.approx(expected.loss.item(), abs=1e-14)
    assert result.metrics.summary() == pytest.approx(expected.metrics.summary())
    assert (gradient_of(result.loss, left_out)[1] == 0).all()


def test_only_the_log_probs_of_the_policy_get_a_gradient():
    batch = map_values(
        random_batch(1, kind="grpo"), lambda values: values.detach().requires_grad_()
    )
    policy_loss(batch, options("grpo", cap=2.0), 0.1).loss.backward()
    with_gradient = [name for name, values in batch._asdict().items() if values.grad is not None]
    assert with_gradient == ["logprobs_BT"]


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_is_computed_in_float32(kind: LossKind):
    batch = random_batch(4, kind=kind)
    half = map_values(batch, lambda values: values.detach().bfloat16())
    full = map_values(half, lambda values: values.float())
    loss = policy_loss(half, options(kind), 0.1).loss
    assert loss.dtype == torch.float32
    assert torch.equal(loss, policy_loss(full, options(kind), 0.1).loss)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("difference", [-300.0, 300.0])
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_very_different_policies_give_finite_gradients(
    kind: LossKind, difference: float, advantage: float
):
    logprobs = torch.full((1, 2), -301.0, requires_grad=True)
    batch = LossBatch(
        logprobs_BT=logprobs,
        old_logprobs_BT=logprobs.detach() + difference,
        sampler_logprobs_BT=logprobs.detach() - difference,
        reference_logprobs_BT=logprobs.detach() + difference,
        advantages_BT=torch.full((1, 2), advantage),
        mask_BT=torch.ones(1, 2, dtype=torch.bool),
        weights_B=torch.ones(1),
    )
    result = policy_loss(batch, options(kind, cap=2.0), 0.1)
    result.loss.backward()
    assert logprobs.grad is not None
    assert torch.isfinite(result.loss)
    assert torch.isfinite(logprobs.grad).all()
    assert all(math.isfinite(value) for value in result.metrics.summary().values())
