"""Layers read with fused kernels, run by Triton's interpreter."""

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
from grpo_cl.policy.kernels import ONE_BY_ONE, Seen
from grpo_cl.policy.layers import FusedLayers, can_be_fused, unfuse
from grpo_cl.policy.packing import pack
from grpo_cl.policy.scoring import Rows, Scorer
from grpo_cl.policy.siblings import families
from test_lean import adapted_llama, llama, qwen2, qwen3

pytest.importorskip("triton")
kernels: Any = import_module("grpo_cl.policy.fused_layers")
scores: Any = import_module("grpo_cl.policy.fused_scores")

aten: Any = torch.ops.aten
SEQUENCES = [(1, 2, 3, 4, 9), (1, 2, 3, 7), (5, 6), (1, 2, 3, 7, 8, 8)]


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    chance = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=chance).to(dtype).requires_grad_()


def gradients(outputs: tuple[Tensor, ...], inputs: list[Tensor]) -> tuple[Tensor, ...]:
    wanted = [drawn(*one.shape, seed=7).detach() for one in outputs]
    total = sum((one * more).sum() for one, more in zip(outputs, wanted, strict=True))
    return torch.autograd.grad(total, inputs)  # type: ignore[arg-type]


def assert_same(
    ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...], inputs: list[Tensor], tolerance: float
) -> None:
    pairs = [*zip(ours, theirs, strict=True)]
    pairs += zip(gradients(ours, inputs), gradients(theirs, inputs), strict=True)
    for one, other in pairs:
        assert torch.allclose(one, other, atol=tolerance, rtol=tolerance)


def rms(hidden: Tensor, weight: Tensor) -> Tensor:
    return hidden * (hidden.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight


def test_a_sum_and_its_norm_go_back_as_autograd_does() -> None:
    hidden, added, weight = drawn(1100, 12), drawn(1100, 12, seed=1), drawn(12, seed=2)
    total = hidden + added
    ours = kernels.add_norm(hidden, added, weight, 1e-5)
    assert_same(ours, (total, rms(total, weight)), [hidden, added, weight], 1e-4)


def test_a_norm_whose_sum_nobody_uses_goes_back_too() -> None:
    hidden, weight = drawn(5, 12), drawn(12, seed=2)
    ours = kernels.add_norm(hidden, None, weight, 1e-5)[1:]
    assert_same(ours, (rms(hidden, weight),), [hidden, weight], 1e-5)


def test_a_norm_that_does_not_learn_has_no_gradient_for_its_weight() -> None:
    hidden, weight = drawn(5, 12), drawn(12, seed=2).detach()
    kernels.add_norm(hidden, None, weight, 1e-5)[1].sum().backward()
    assert weight.grad is None
    assert hidden.grad is not None


def test_a_gate_goes_back_as_autograd_does() -> None:
    gate, up = drawn(3, 1500), drawn(3, 1500, seed=1)
    assert_same((kernels.gated(gate, up),), (silu(gate) * up,), [gate, up], 1e-5)


def test_turned_states_are_turned_back() -> None:
    states = drawn(5, 3, 12)
    angles = drawn(5, 6, seed=1).detach().repeat(1, 2)
    low, high = states.chunk(2, -1)
    halves = torch.cat([-high, low], -1)
    expected = states * angles.cos()[:, None] + halves * angles.sin()[:, None]
    found = kernels.turned(states, (angles.cos(), angles.sin()))
    assert_same((found,), (expected,), [states], 1e-5)


def test_looks_are_joined_in_place() -> None:
    def seen(seed: int) -> Seen:
        return Seen(drawn(9, 3, 10, seed=seed).detach(), drawn(3, 9, seed=seed + 1).detach())

    whole, more = seen(0), seen(2).at(slice(2, 6))
    expected = Seen(*(one.clone() for one in whole))
    ONE_BY_ONE.join(expected.at(slice(3, 7)), more)
    kernels.join_looks(*whole.at(slice(3, 7)), *more)
    for ours, theirs in zip(whole, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("width", [50, 4096, 5000])
def test_tokens_are_scored_as_a_softmax_does(width: int) -> None:
    logits, targets = drawn(4, width), torch.tensor([0, width - 1, 7, 7])
    logprobs = (logits / 0.7).log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    found, spread = scores.scored(logits, targets, 0.7)
    assert torch.allclose(spread, entropy, atol=1e-4)
    assert not spread.requires_grad
    expected = logprobs.gather(-1, targets[:, None])[:, 0]
    assert_same((found,), (expected,), [logits], 1e-5)


def test_a_token_that_cannot_be_drawn_does_not_spoil_the_others() -> None:
    logits = drawn(2, 50).detach()
    logits[:, 5] = -torch.inf
    found, spread = scores.scored(logits, torch.tensor([1, 2]), 1.0)
    assert found.isfinite().all()
    assert spread.isfinite().all()


def read(
    scorer: Scorer, module: PreTrainedModel, dtype: torch.dtype
) -> tuple[Tensor, dict[str, Tensor]]:
    """Log-probs over a packed row, and the gradients of a sum of them."""
    longest = max(map(len, SEQUENCES))
    ids_BT = torch.tensor([[*one, *[0] * (longest - len(one))] for one in SEQUENCES])
    attention_BT = (torch.arange(longest) < torch.tensor([*map(len, SEQUENCES)])[:, None]).long()
    rows = Rows(ids_BT, attention_BT, pack(SEQUENCES, families(SEQUENCES)))
    found = scorer.score(rows, mask_BT=None, temperature=1.0, max_logits=2**20).logprobs_BT
    module.zero_grad()
    (found * torch.linspace(-1, 1, found.numel()).view_as(found)).sum().backward()
    learned = {
        name: one.grad.clone() for name, one in module.named_parameters() if one.grad is not None
    }
    assert found.dtype == torch.float32
    assert all(grad.dtype == dtype for grad in learned.values())
    return found.detach(), learned


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("builder", [llama, qwen2, qwen3, adapted_llama])
def test_fused_layers_score_and_learn_as_the_models_own(
    builder: Callable[[], Any], is_checkpointed: bool
) -> None:
    module = built(builder)
    assert isinstance(module, PreTrainedModel)
    expected, wanted = read(Scorer(module), module, torch.float32)
    if is_checkpointed:
        module.gradient_checkpointing_enable()
        module.train()
    scorer = Scorer(module)
    assert FusedLayers(module).are_exact()
    found, learned = read(scorer, module, torch.float32)
    assert torch.allclose(found, expected, atol=1e-4)
    assert learned.keys() == wanted.keys()
    for name, grad in learned.items():
        assert torch.allclose(grad, wanted[name], atol=1e-3, rtol=1e-3), name
    unfuse(module)
    assert torch.equal(read(scorer, module, torch.float32)[0], expected)


class Products(TorchDispatchMode):
    """Counts matrix products by what is read and written."""

    def __init__(self) -> None:
        super().__init__()
        self.made: Counter[tuple[int, int]] = Counter()

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func in {aten.mm.default, aten.addmm.default, aten.addmm_.default}:
            self.made[args[-1].shape[0], found.shape[1]] += 1
        return found


@pytest.mark.parametrize("builder", [llama, adapted_llama])
def test_what_is_computed_twice_leaves_out_its_last_product(builder: Callable[[], Any]) -> None:
    module = built(builder)
    assert isinstance(module, PreTrainedModel)
    module.gradient_checkpointing_enable()
    module.train()
    scorer = Scorer(module)
    FusedLayers(module)
    with Products() as products:
        read(scorer, module, torch.float32)
    settings = module.config
    layers = settings.num_hidden_layers
    # Once forward, and two of as many numbers for what the gates read on the way back.
    assert products.made[settings.intermediate_size, settings.hidden_size] == 3 * layers


def test_in_bfloat16_fused_layers_are_as_near_to_float32_as_the_models_own() -> None:
    module = built(llama)
    assert isinstance(module, PreTrainedModel)
    _, wanted = read(Scorer(module), module, torch.float32)
    scorer = Scorer(module.bfloat16())

    def error() -> float:
        _, learned = read(scorer, module, torch.bfloat16)
        parts = [(learned[name].float() - one).norm() / one.norm() for name, one in wanted.items()]
        return torch.stack(parts).mean().item()

    plain = error()
    FusedLayers(module)
    assert 0 < error() < 2 * plain  # the interpreter cuts numbers off where a GPU rounds them


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_that_do_more_than_the_shape_says_are_noticed(dtype: torch.dtype) -> None:
    module: Any = built(llama)
    Scorer(module.to(dtype))  # which gives it attention over packed rows
    layers = FusedLayers(module)
    assert layers.are_exact()
    module.base_model.layers[1].mlp.act_fn = torch.nn.GELU()
    assert not layers.are_exact()


def test_a_copy_of_a_fused_model_reads_with_its_own_weights() -> None:
    module = built(llama)
    assert isinstance(module, PreTrainedModel)
    expected, _ = read(Scorer(module), module, torch.float32)
    FusedLayers(module)
    other = copy.deepcopy(module)
    with torch.no_grad():
        for weight in module.parameters():
            weight.zero_()
    scorer = Scorer(other)
    FusedLayers(other)
    assert torch.allclose(read(scorer, other, torch.float32)[0], expected, atol=1e-4)


def test_whether_a_copy_can_be_packed_is_tried_with_its_own_layers() -> None:
    module: Any = built(llama)
    Scorer(module)
    FusedLayers(module)
    module.base_model.layers[1].mlp.act_fn = torch.nn.GELU()  # which fused layers do not know
    assert Scorer(copy.deepcopy(module))._can_pack


def test_only_models_of_the_shape_are_fused() -> None:
    module = built(llama)
    assert isinstance(module, PreTrainedModel)
    assert can_be_fused(module)
    module.config.hidden_act = "gelu"
    assert not can_be_fused(module)
