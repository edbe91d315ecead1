"""Optimizer steps and exact state of a PyTorch module as a policy."""

from pathlib import Path

import torch
from torch import Tensor, nn

from grpo_cl.policy.learner.torch_policy import TorchPolicy


def module() -> nn.Module:
    torch_module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1), nn.Linear(1, 1))
    with torch.no_grad():
        for number, weight in enumerate(torch_module.parameters()):
            weight.fill_(0.1 * (number + 1))
    return torch_module


def loss_of(policy: TorchPolicy) -> Tensor:
    parts = policy.module
    assert isinstance(parts, nn.Sequential)
    return parts[1](parts[0](torch.ones(1, 2))).sum()  # the last layer takes no part


def test_step_changes_weights_by_the_learning_rate() -> None:
    policy = TorchPolicy(module())
    before = [weight.detach().clone() for weight in policy.module.parameters()]
    metrics = policy.update(loss_of(policy), learning_rate=0.01)
    assert metrics["grad_norm"] > 0
    assert metrics["learning_rate"] == 0.01
    moved = [
        (weight - old).abs().max().item()
        for weight, old in zip(policy.module.parameters(), before, strict=True)
    ]
    assert [round(value, 4) for value in moved] == [0.01] * 4 + [0.0] * 2


def test_loss_that_is_not_finite_changes_nothing() -> None:
    policy = TorchPolicy(module())
    before = [weight.detach().clone() for weight in policy.module.parameters()]
    assert policy.update(loss_of(policy) * float("nan"), learning_rate=1.0)["skipped_updates"] == 1
    pairs = zip(policy.module.parameters(), before, strict=True)
    assert all(torch.equal(weight, old) for weight, old in pairs)


def test_saved_state_continues_exactly_with_another_learning_rate(tmp_path: Path) -> None:
    policies = [TorchPolicy(module()), TorchPolicy(module())]
    policies[0].update(loss_of(policies[0]), learning_rate=0.1)
    policies[0].save_state(tmp_path)
    policies[1].load_state(tmp_path)
    for policy in policies:
        for rate in (0.1, 0.3):
            policy.update(loss_of(policy), learning_rate=rate)
    pairs = zip(*(policy.module.parameters() for policy in policies), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
