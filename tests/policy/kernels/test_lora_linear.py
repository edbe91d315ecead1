from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import Linear
from torch import Tensor, nn

from grpo_cl.policy.kernels.lora_linear import lora_linear, lora_linear_without_recompute


def adapted(*, is_trained: bool = False, has_bias: bool = True, **settings: Any) -> Linear:
    torch.manual_seed(0)
    adapters = LoraConfig(r=3, lora_alpha=5, target_modules=["0"], **settings)
    model: Any = get_peft_model(nn.Sequential(nn.Linear(6, 4, bias=has_bias)), adapters)
    layer = model.base_model.model[0]
    nn.init.normal_(layer.lora_B["default"].weight)
    layer.base_layer.requires_grad_(is_trained)
    return layer


def gradients(layer: Linear, output: Tensor, tokens: Tensor) -> list[Tensor]:
    weights = torch.arange(output.numel(), dtype=output.dtype).view_as(output).sin()
    inputs = [tokens, *(weight for weight in layer.parameters() if weight.requires_grad)]
    return list(torch.autograd.grad((output * weights).sum(), inputs))


@pytest.mark.parametrize("is_trained", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("function", [lora_linear, lora_linear_without_recompute])
def test_lora_linear_has_the_outputs_and_gradients_of_peft(
    function: Callable[[nn.Module, Tensor], Tensor], has_bias: bool, is_trained: bool
) -> None:
    layer = adapted(is_trained=is_trained, has_bias=has_bias)
    tokens = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()
    actual, expected = function(layer, tokens), layer(tokens)
    assert torch.allclose(actual, expected, atol=1e-5)
    expected_grads = gradients(layer, expected, tokens)
    for actual_grad, grad in zip(gradients(layer, actual, tokens), expected_grads, strict=True):
        assert torch.allclose(actual_grad, grad, atol=1e-5)


def test_adapter_gradients_are_float32_beside_a_bfloat16_layer() -> None:
    layer = adapted()
    layer.base_layer.to(torch.bfloat16)
    tokens = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)).bfloat16()
    tokens.requires_grad_()
    actual, expected = lora_linear(layer, tokens), layer(tokens)
    assert actual.dtype == expected.dtype == torch.bfloat16
    assert (actual - expected).float().norm() < 0.02 * expected.float().norm()
    input_grad, *adapter_grads = gradients(layer, actual, tokens)
    assert input_grad.dtype == torch.bfloat16
    assert all(grad.dtype == torch.float32 for grad in adapter_grads)
    _, *expected_grads = gradients(layer, expected, tokens)
    for actual_grad, grad in zip(adapter_grads, expected_grads, strict=True):
        assert (actual_grad - grad).norm() < 0.02 * grad.norm()


def test_a_disabled_or_merged_adapter_adds_nothing() -> None:
    layer, tokens = adapted(), torch.ones(2, 6)
    expected = layer(tokens)
    layer.merge()
    assert torch.allclose(lora_linear(layer, tokens), expected, atol=1e-5)
    layer.unmerge()
    layer.enable_adapters(enabled=False)
    assert torch.allclose(lora_linear(layer, tokens), layer.base_layer(tokens))


@pytest.mark.parametrize("settings", [{"lora_dropout": 0.5}, {"use_dora": True}])
def test_adapters_with_dropout_or_dora_use_pefts_forward(settings: dict[str, Any]) -> None:
    layer, tokens = adapted(**settings), torch.ones(2, 6)
    torch.manual_seed(3)
    expected = layer(tokens)
    torch.manual_seed(3)
    assert torch.equal(lora_linear(layer, tokens), expected)


def test_a_layer_without_adapter_is_called_directly() -> None:
    layer = nn.Linear(6, 4)
    assert torch.equal(lora_linear(layer, torch.ones(2, 6)), layer(torch.ones(2, 6)))
