from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_cl.errors import TrainingError
from grpo_cl.policy.continual.importance import fisher_diagonal, normalize_importance, sensitivity
from grpo_cl.policy.continual.tensors import Tensors
from grpo_cl.policy.learner.learner import Learner
from grpo_cl.policy.model.distributed import DistributedContext
from grpo_cl.policy.model.tabular import SHARED_FEATURE
from grpo_cl.types import TokenTrace
from tabular_weights import NAME, NUM_OPTIONS, SHAPE, tabular_learner
from tiny_learners import random_traces, settings, tiny_policy, trace


@pytest.fixture
def learner(tmp_path: Path) -> Learner:
    return tabular_learner(tmp_path)


def lora_learner(*, dropout: float, **changes: Any) -> Learner:
    config = settings(lora={"r": 4, "dropout": dropout}, **changes)
    return Learner(tiny_policy(config), config, DistributedContext(device=torch.device("cpu")))


def all_options(counts: tuple[int, ...], signal: int) -> list[TokenTrace]:
    """Traces with each option as often as ``counts`` says, after the signal of this number."""
    first = NUM_OPTIONS + signal
    return [trace([first, o], (1, 2)) for o, count in enumerate(counts) for _ in range(count)]


def set_policy(learner: Learner, counts: tuple[int, ...], signal: int) -> None:
    weight = torch.zeros(SHAPE)
    weight[:, 1 + signal] = torch.tensor(counts).float().log()
    learner.load_weights({NAME: weight})


def test_the_fisher_diagonal_of_a_softmax_is_exact(learner: Learner):
    counts = (1, 2, 2, 4, 7)
    set_policy(learner, counts, signal=3)
    # With options in proportion to their probabilities the estimate is the expectation.
    importance = fisher_diagonal(learner, all_options(counts, signal=3))[NAME]
    p = torch.tensor(counts) / 16
    exact = (torch.diag(p) - torch.outer(p, p)).diag()
    torch.testing.assert_close(importance[:, 1 + 3], exact)
    torch.testing.assert_close(importance[:, 0], SHARED_FEATURE**2 * exact)
    assert importance[:, 1:4].count_nonzero() == 0
    assert importance[:, 5:].count_nonzero() == 0


def test_the_fisher_diagonal_squares_the_gradient_of_the_sum_over_tokens(learner: Learner):
    set_policy(learner, (1, 1, 1, 1, 1), signal=0)
    # The second token follows an option, which has no features: its gradient is zero.
    single, double = (
        fisher_diagonal(learner, [trace([NUM_OPTIONS, 2, 3], (1, end))])[NAME] for end in (2, 3)
    )
    assert torch.equal(single, double)
    assert single[2, 1].item() == pytest.approx(0.8**2)
    assert single[0, 1].item() == pytest.approx(0.2**2)


def test_sensitivity_is_the_mean_absolute_gradient_of_squared_logprobs(learner: Learner):
    set_policy(learner, (1, 1, 1, 1, 4), signal=1)
    importance = sensitivity(learner, all_options((1, 0, 0, 0, 1), signal=1))[NAME]
    p = torch.tensor([1, 1, 1, 1, 4]) / 8
    gradients = [
        (2 * p[option].log() * (torch.eye(5)[option] - p)).abs()
        for option in (0, 4)  # the gradient of log p of an option is its unit vector minus p
    ]
    torch.testing.assert_close(importance[:, 2], (gradients[0] + gradients[1]) / 2)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_importance_is_the_same_with_dropout(checkpointing: bool):
    traces = random_traces(3)
    without, with_dropout = (
        fisher_diagonal(lora_learner(dropout=rate, gradient_checkpointing=checkpointing), traces)
        for rate in (0.0, 0.5)
    )
    assert any(tensor.any() for tensor in without.values())
    for name, tensor in without.items():
        torch.testing.assert_close(with_dropout[name], tensor)


def test_importance_that_is_not_finite_is_refused():
    with pytest.raises(TrainingError, match=r"the importance of b is not finite.*model_dtype"):
        normalize_importance({"a": torch.ones(2), "b": torch.tensor([1.0, torch.inf])})


@pytest.mark.parametrize("size", [1e-44, 1e-39])
def test_importances_whose_mean_underflows_anchor_nothing(size: float):
    importance = normalize_importance({"a": torch.tensor([size, 0.0, 0.0])})
    assert importance["a"].tolist() == [0.0, 0.0, 0.0]


def test_normalized_importances_have_a_mean_of_one(caplog: pytest.LogCaptureFixture):
    importance = normalize_importance({"a": torch.tensor([1.0, 3.0]), "b": torch.tensor([[8.0]])})
    assert importance["a"].tolist() == [0.25, 0.75]
    assert importance["b"].tolist() == [[2.0]]
    zeros: Tensors = {"a": torch.zeros(2)}
    assert normalize_importance(zeros)["a"].tolist() == [0, 0]
    assert "no weight of this stage is anchored" in caplog.text
