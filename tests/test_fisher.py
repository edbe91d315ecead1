from pathlib import Path

import pytest
import torch

from grpo_cl.policy.continual.fisher import fisher, normalised, sensitivity
from grpo_cl.policy.continual.tensors import Tensors
from grpo_cl.policy.learner import Learner
from grpo_cl.policy.tabular import SHARED
from grpo_cl.types import TokenTrace
from tabular_weights import NAME, NUM_OPTIONS, SHAPE, tabular_learner
from tiny_learners import trace


@pytest.fixture
def learner(tmp_path: Path) -> Learner:
    return tabular_learner(tmp_path)


def choices(chances: tuple[int, ...], signal: int) -> list[TokenTrace]:
    """Each option as often as ``chances`` says, after the signal of this number."""
    first = NUM_OPTIONS + signal
    return [trace([first, o], (1, 2)) for o, count in enumerate(chances) for _ in range(count)]


def with_chances(learner: Learner, chances: tuple[int, ...], signal: int) -> None:
    weight = torch.zeros(SHAPE)
    weight[:, 1 + signal] = torch.tensor(chances).float().log()
    learner.load_weights({NAME: weight})


def test_the_fisher_information_is_that_of_a_softmax(learner: Learner):
    chances = (1, 2, 2, 4, 7)
    with_chances(learner, chances, signal=3)
    # All options, each as often as the policy writes it, are the expectation itself.
    found = fisher(learner, choices(chances, signal=3))[NAME]
    p = torch.tensor(chances) / 16
    exact = (torch.diag(p) - torch.outer(p, p)).diag()
    torch.testing.assert_close(found[:, 1 + 3], exact)
    torch.testing.assert_close(found[:, 0], SHARED**2 * exact)
    assert found[:, 1:4].count_nonzero() == 0
    assert found[:, 5:].count_nonzero() == 0


def test_the_fisher_information_of_several_tokens_is_of_their_sum(learner: Learner):
    with_chances(learner, (1, 1, 1, 1, 1), signal=0)
    # The second reply follows an option, which has no features: its gradient is zero.
    one, two = (fisher(learner, [trace([NUM_OPTIONS, 2, 3], (1, end))])[NAME] for end in (2, 3))
    assert torch.equal(one, two)
    assert one[2, 1].item() == pytest.approx(0.8**2)
    assert one[0, 1].item() == pytest.approx(0.2**2)


def test_sensitivity_is_the_mean_size_of_the_gradient_of_squared_logprobs(learner: Learner):
    with_chances(learner, (1, 1, 1, 1, 4), signal=1)
    found = sensitivity(learner, choices((1, 0, 0, 0, 1), signal=1))[NAME]
    p = torch.tensor([1, 1, 1, 1, 4]) / 8
    sizes = [
        (2 * p[option].log() * (torch.eye(5)[option] - p)).abs()
        for option in (0, 4)  # the gradient of log p of an option is its unit vector minus p
    ]
    torch.testing.assert_close(found[:, 2], (sizes[0] + sizes[1]) / 2)


def test_importances_have_a_mean_of_one(caplog: pytest.LogCaptureFixture):
    found = normalised({"a": torch.tensor([1.0, 3.0]), "b": torch.tensor([[8.0]])})
    assert found["a"].tolist() == [0.25, 0.75]
    assert found["b"].tolist() == [[2.0]]
    nothing: Tensors = {"a": torch.zeros(2)}
    assert normalised(nothing)["a"].tolist() == [0, 0]
    assert "nothing holds this stage" in caplog.text
