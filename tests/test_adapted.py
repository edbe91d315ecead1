from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import Linear
from torch import Tensor, nn

from grpo_cl.policy.adapted import project, project_last


def adapted(*, learns: bool = False, has_bias: bool = True, **settings: Any) -> Linear:
    torch.manual_seed(0)
    adapters = LoraConfig(r=3, lora_alpha=5, target_modules=["0"], **settings)
    model: Any = get_peft_model(nn.Sequential(nn.Linear(6, 4, bias=has_bias)), adapters)
    layer = model.base_model.model[0]
    nn.init.normal_(layer.lora_B["default"].weight)
    layer.base_layer.requires_grad_(learns)
    return layer


def learned(layer: Linear, output: Tensor, given: Tensor) -> list[Tensor]:
    wanted = torch.arange(output.numel(), dtype=output.dtype).view_as(output).sin()
    inputs = [given, *(weight for weight in layer.parameters() if weight.requires_grad)]
    return list(torch.autograd.grad((output * wanted).sum(), inputs))


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("way", [project, project_last])
def test_a_layer_with_an_adapter_writes_and_learns_as_peft_does(
    way: Callable[[nn.Module, Tensor], Tensor], has_bias: bool, learns: bool
) -> None:
    layer = adapted(learns=learns, has_bias=has_bias)
    given = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()
    found, expected = way(layer, given), layer(given)
    assert torch.allclose(found, expected, atol=1e-5)
    pairs = zip(learned(layer, found, given), learned(layer, expected, given), strict=True)
    assert all(torch.allclose(ours, theirs, atol=1e-5) for ours, theirs in pairs)


def test_an_adapter_learns_in_float32_beside_a_layer_in_bfloat16() -> None:
    layer = adapted()
    layer.base_layer.to(torch.bfloat16)
    given = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)).bfloat16()
    given.requires_grad_()
    found, expected = project(layer, given), layer(given)
    assert found.dtype == expected.dtype == torch.bfloat16
    assert (found - expected).float().norm() < 0.02 * expected.float().norm()
    to_given, *to_adapter = learned(layer, found, given)
    assert to_given.dtype == torch.bfloat16
    assert all(grad.dtype == torch.float32 for grad in to_adapter)
    for ours, theirs in zip(to_adapter, learned(layer, expected, given)[1:], strict=True):
        assert (ours - theirs).norm() < 0.02 * theirs.norm()


def test_an_adapter_that_is_switched_off_or_merged_adds_nothing() -> None:
    layer, given = adapted(), torch.ones(2, 6)
    expected = layer(given)
    layer.merge()
    assert torch.allclose(project(layer, given), expected, atol=1e-5)
    layer.unmerge()
    layer.enable_adapters(enabled=False)
    assert torch.allclose(project(layer, given), layer.base_layer(given))


@pytest.mark.parametrize("settings", [{"lora_dropout": 0.5}, {"use_dora": True}])
def test_adapters_of_other_kinds_go_their_own_way(settings: dict[str, Any]) -> None:
    layer, given = adapted(**settings), torch.ones(2, 6)
    torch.manual_seed(3)
    expected = layer(given)
    torch.manual_seed(3)
    assert torch.equal(project(layer, given), expected)


def test_a_plain_layer_is_called() -> None:
    layer = nn.Linear(6, 4)
    assert torch.equal(project(layer, torch.ones(2, 6)), layer(torch.ones(2, 6)))
