"""Fused training blocks and their kernels, run by Triton's interpreter."""

import copy
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel
from typing_extensions import override

from architectures import built
from grpo_cl.policy.kernels.fused_blocks import (
    fuse_blocks,
    fused_blocks_are_exact,
    unfuse_blocks,
)
from grpo_cl.policy.kernels.llama_block import supports_fused_blocks
from grpo_cl.policy.kernels.packing import pack
from grpo_cl.policy.kernels.prefix_groups import group_by_prefix
from grpo_cl.policy.kernels.varlen_attention import CPU_SDPA, AttentionState
from grpo_cl.policy.model.logprobs import LogprobComputer, PaddedBatch
from llama_models import adapted_llama, adapted_phi3, llama, phi3, qwen2, qwen3
from parameters import mostly_slow

pytest.importorskip("triton")
kernels: Any = import_module("grpo_cl.policy.kernels.triton.blocks")
logprob_kernels: Any = import_module("grpo_cl.policy.kernels.triton.logprobs")

aten: Any = torch.ops.aten
SEQUENCES = [(1, 2, 3, 4, 9), (1, 2, 3, 7), (5, 6), (1, 2, 3, 7, 8, 8)]


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_()


def gradients(outputs: tuple[Tensor, ...], inputs: list[Tensor]) -> tuple[Tensor, ...]:
    weights = [randn(*output.shape, seed=7).detach() for output in outputs]
    total = sum((output * weight).sum() for output, weight in zip(outputs, weights, strict=True))
    return torch.autograd.grad(total, inputs)  # type: ignore[arg-type]


def assert_same(
    actual: tuple[Tensor, ...], expected: tuple[Tensor, ...], inputs: list[Tensor], tolerance: float
) -> None:
    pairs = [*zip(actual, expected, strict=True)]
    pairs += zip(gradients(actual, inputs), gradients(expected, inputs), strict=True)
    for first, second in pairs:
        assert torch.allclose(first, second, atol=tolerance, rtol=tolerance)


def rms_norm(hidden: Tensor, weight: Tensor) -> Tensor:
    return hidden * (hidden.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight


@pytest.mark.slow
def test_add_norm_has_the_gradients_of_autograd() -> None:
    hidden, added, weight = randn(1100, 12), randn(1100, 12, seed=1), randn(12, seed=2)
    total = hidden + added
    actual = kernels.add_norm(hidden, added, weight, 1e-5)
    assert_same(actual, (total, rms_norm(total, weight)), [hidden, added, weight], 1e-4)


def test_norm_has_gradients_when_its_sum_is_unused() -> None:
    hidden, weight = randn(5, 12), randn(12, seed=2)
    actual = kernels.add_norm(hidden, None, weight, 1e-5)[1:]
    assert_same(actual, (rms_norm(hidden, weight),), [hidden, weight], 1e-5)


def test_a_frozen_norm_weight_gets_no_gradient() -> None:
    hidden, weight = randn(5, 12), randn(12, seed=2).detach()
    kernels.add_norm(hidden, None, weight, 1e-5)[1].sum().backward()
    assert weight.grad is None
    assert hidden.grad is not None


def test_swiglu_has_the_gradients_of_autograd() -> None:
    gate, up = randn(3, 1500), randn(3, 1500, seed=1)
    assert_same((kernels.swiglu(gate, up),), (silu(gate) * up,), [gate, up], 1e-5)


def test_rope_has_the_gradients_of_autograd() -> None:
    states = randn(5, 3, 12)
    angles = randn(5, 6, seed=1).detach().repeat(1, 2)
    low, high = states.chunk(2, -1)
    halves = torch.cat([-high, low], -1)
    expected = states * angles.cos()[:, None] + halves * angles.sin()[:, None]
    actual = kernels.apply_rope(states, (angles.cos(), angles.sin()))
    assert_same((actual,), (expected,), [states], 1e-5)


@pytest.mark.parametrize("heads_first", [False, True])
def test_attention_states_are_merged_in_place_by_lse(*, heads_first: bool) -> None:
    def random_state(seed: int) -> AttentionState:
        output_QHD = randn(9, 3, 10, seed=seed).detach()
        if heads_first:  # FlashAttention's output has the strides of its queries
            output_QHD = output_QHD.transpose(0, 1).contiguous().transpose(0, 1)
        return AttentionState(output_QHD, randn(3, 9, seed=seed + 1).detach())

    state, other = random_state(0), random_state(2).at(slice(2, 6))
    expected = AttentionState(*(tensor.clone() for tensor in state))
    CPU_SDPA.merge_states(expected.at(slice(3, 7)), other)
    kernels.merge_states(*state.at(slice(3, 7)), *other)
    for actual, wanted in zip(state, expected, strict=True):
        assert torch.allclose(actual, wanted, atol=1e-6)


@pytest.mark.parametrize("width", [50, 4096, 5000])
def test_fused_logprobs_and_entropy_are_those_of_log_softmax(width: int) -> None:
    logits, targets = randn(4, width), torch.tensor([0, width - 1, 7, 7])
    logprobs = (logits / 0.7).log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    actual, actual_entropy = logprob_kernels.logprobs_and_entropy(logits, targets, 0.7)
    assert torch.allclose(actual_entropy, entropy, atol=1e-4)
    assert not actual_entropy.requires_grad
    expected = logprobs.gather(-1, targets[:, None])[:, 0]
    assert_same((actual,), (expected,), [logits], 1e-5)


def test_a_logit_of_minus_infinity_gives_no_nan() -> None:
    logits = randn(2, 50).detach()
    logits[:, 5] = -torch.inf
    logprobs, entropy = logprob_kernels.logprobs_and_entropy(logits, torch.tensor([1, 2]), 1.0)
    assert logprobs.isfinite().all()
    assert entropy.isfinite().all()


def logprobs_and_gradients(
    computer: LogprobComputer, module: PreTrainedModel, dtype: torch.dtype
) -> tuple[Tensor, dict[str, Tensor]]:
    """Log-probs of a packed row, and the gradients of a weighted sum of them."""
    longest = max(map(len, SEQUENCES))
    ids_BT = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in SEQUENCES])
    attention_BT = (torch.arange(longest) < torch.tensor([*map(len, SEQUENCES)])[:, None]).long()
    batch = PaddedBatch(ids_BT, attention_BT, pack(SEQUENCES, group_by_prefix(SEQUENCES)))
    logprobs_BT = computer.logprobs(
        batch, mask_BT=None, temperature=1.0, max_logits=2**20
    ).logprobs_BT
    module.zero_grad()
    weights_BT = torch.linspace(-1, 1, logprobs_BT.numel()).view_as(logprobs_BT)
    (logprobs_BT * weights_BT).sum().backward()
    grads = {
        name: weight.grad.clone()
        for name, weight in module.named_parameters()
        if weight.grad is not None
    }
    assert logprobs_BT.dtype == torch.float32
    assert all(grad.dtype == dtype for grad in grads.values())
    return logprobs_BT.detach(), grads


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize(
    "builder",
    mostly_slow(
        [llama, phi3, qwen2, qwen3, adapted_llama, adapted_phi3], fast=[adapted_llama, adapted_phi3]
    ),
)
def test_fused_blocks_give_the_models_logprobs_and_gradients(
    builder: Callable[[], Any], is_checkpointed: bool
) -> None:
    module = built(builder)
    assert isinstance(module, PreTrainedModel)
    expected, expected_grads = logprobs_and_gradients(
        LogprobComputer.build(module), module, torch.float32
    )
    if is_checkpointed:
        module.gradient_checkpointing_enable()
        module.train()
    computer = LogprobComputer.build(module)
    fuse_blocks(module)
    assert fused_blocks_are_exact(module)
    logprobs_BT, grads = logprobs_and_gradients(computer, module, torch.float32)
    assert torch.allclose(logprobs_BT, expected, atol=1e-4)
    assert grads.keys() == expected_grads.keys()
    for name, grad in grads.items():
        assert torch.allclose(grad, expected_grads[name], atol=1e-3, rtol=1e-3), name
    unfuse_blocks(module)
    assert torch.equal(logprobs_and_gradients(computer, module, torch.float32)[0], expected)


class MatmulCounter(TorchDispatchMode):
    """Counts matrix products by inner and output dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[tuple[int, int]] = Counter()

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func in {aten.mm.default, aten.addmm.default, aten.addmm_.default}:
            self.counts[args[-1].shape[0], output.shape[1]] += 1
        return output


@pytest.mark.slow
@pytest.mark.parametrize("builder", [llama, adapted_llama])
def test_a_checkpointed_block_does_not_recompute_its_last_product(
    builder: Callable[[], Any],
) -> None:
    module = built(builder)
    assert isinstance(module, PreTrainedModel)
    module.gradient_checkpointing_enable()
    module.train()
    computer = LogprobComputer.build(module)
    fuse_blocks(module)
    with MatmulCounter() as matmuls:
        logprobs_and_gradients(computer, module, torch.float32)
    settings = module.config
    layers = settings.num_hidden_layers
    # One in the forward pass, and two of the same size for the gradients of gate and up inputs.
    assert matmuls.counts[settings.intermediate_size, settings.hidden_size] == 3 * layers


def test_bfloat16_gradients_of_fused_blocks_are_as_accurate_as_the_models_own() -> None:
    module = built(llama)
    assert isinstance(module, PreTrainedModel)
    _, expected = logprobs_and_gradients(LogprobComputer.build(module), module, torch.float32)
    computer = LogprobComputer.build(module.bfloat16())

    def error() -> float:
        _, grads = logprobs_and_gradients(computer, module, torch.bfloat16)
        errors = [
            (grads[name].float() - grad).norm() / grad.norm() for name, grad in expected.items()
        ]
        return torch.stack(errors).mean().item()

    unfused = error()
    fuse_blocks(module)
    assert 0 < error() < 2 * unfused  # the interpreter truncates where a GPU rounds


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_of_another_architecture_are_detected(dtype: torch.dtype) -> None:
    module: Any = built(llama)
    LogprobComputer.build(module.to(dtype))  # which sets packed attention
    fuse_blocks(module)
    assert fused_blocks_are_exact(module)
    module.base_model.layers[1].mlp.act_fn = torch.nn.GELU()
    assert not fused_blocks_are_exact(module)


def test_a_copy_of_a_fused_model_uses_its_own_weights() -> None:
    module = built(llama)
    assert isinstance(module, PreTrainedModel)
    expected, _ = logprobs_and_gradients(LogprobComputer.build(module), module, torch.float32)
    fuse_blocks(module)
    other = copy.deepcopy(module)
    with torch.no_grad():
        for weight in module.parameters():
            weight.zero_()
    computer = LogprobComputer.build(other)
    fuse_blocks(other)
    assert torch.allclose(
        logprobs_and_gradients(computer, other, torch.float32)[0], expected, atol=1e-4
    )


def test_packing_of_a_copy_is_probed_with_unfused_blocks() -> None:
    module: Any = built(llama)
    LogprobComputer.build(module)
    fuse_blocks(module)
    module.base_model.layers[1].mlp.act_fn = torch.nn.GELU()  # which fused blocks ignore
    assert LogprobComputer.build(copy.deepcopy(module))._can_pack


def test_only_swiglu_models_are_fused() -> None:
    module = built(llama)
    assert isinstance(module, PreTrainedModel)
    assert supports_fused_blocks(module)
    module.config.hidden_act = "gelu"
    assert not supports_fused_blocks(module)
