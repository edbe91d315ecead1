"""The loss of completions by hand."""

import math
from typing import Any

import pytest
import torch

from grpo_cl.config import GRPOConfig
from grpo_cl.errors import ConfigError
from grpo_cl.policy.learner.completion_loss import CompletionSample, completion_loss, seeded

CONFIG: dict[str, Any] = {"loss": {"kind": "grpo", "epsilon_low": 0.2, "epsilon_high": 0.2}}


def sample(logprobs: list[float], recorded: list[float], advantage: float) -> CompletionSample:
    return CompletionSample(torch.tensor(logprobs, requires_grad=True), recorded, advantage)


def test_loss_by_hand() -> None:
    config = GRPOConfig.model_validate(CONFIG)
    grown = sample([-0.9, -1.0], [-1.0, -1.0], 2.0)
    shrunk = sample([-1.1], [-1.0], -1.0)
    result = completion_loss([grown, shrunk], config)
    first = -(math.exp(0.1) * 2 + 2) / 2
    second = math.exp(-0.1)
    assert result.loss.item() == pytest.approx((first + second) / 2)


def test_gradient_is_zero_outside_the_clip_range_and_on_padding() -> None:
    config = GRPOConfig.model_validate(CONFIG)
    clipped = sample([-0.5, -1.0], [-1.0, -1.0], 1.0)
    short = sample([-1.0], [-1.0], 1.0)
    completion_loss([clipped, short], config).loss.backward()
    assert clipped.logprobs_T.grad is not None
    assert short.logprobs_T.grad is not None
    assert clipped.logprobs_T.grad.tolist() == pytest.approx([0.0, -0.25])
    assert short.logprobs_T.grad.tolist() == pytest.approx([-0.5])


def test_log_probs_without_gradient_or_of_another_length_are_refused() -> None:
    config = GRPOConfig.model_validate(CONFIG)
    with pytest.raises(ConfigError, match="without a gradient"):
        completion_loss([CompletionSample(torch.tensor([-1.0]), [-1.0], 1.0)], config)
    with pytest.raises(ConfigError, match=r"shape \(2,\) for a completion of 1 tokens"):
        completion_loss([sample([-1.0, -1.0], [-1.0], 1.0)], config)


def test_seeded_numbers_do_not_change_the_global_generator() -> None:
    before = torch.random.get_rng_state()
    drawn: list[float] = []
    for _ in range(2):
        with seeded(7):
            drawn.append(torch.rand(()).item())
    assert drawn[0] == drawn[1]
    assert torch.equal(torch.random.get_rng_state(), before)
