import pytest
import torch
from torch import Tensor

from grpo_cl.policy.kernels.packing import Layout, VarlenSegments, pack
from grpo_cl.policy.kernels.prefix_groups import PrefixGroup
from grpo_cl.policy.kernels.varlen_attention import (
    CPU_SDPA,
    FLASH,
    REFERENCE,
    AttentionState,
    States,
    select_kernel,
)

GROUPS = [PrefixGroup((0, 1), 3), PrefixGroup((2,), 0), PrefixGroup((3, 4, 5), 300)]
LENGTHS = (5, 4, 1, 301, 310, 600)


@pytest.fixture
def layout() -> Layout:
    return pack([[1] * length for length in LENGTHS], GROUPS)


def randn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def attention_calls(layout: Layout) -> list[tuple[VarlenSegments, States]]:
    count = layout.ids_1N.numel()
    states = States(randn(count, 4, 8), randn(count, 2, 8), randn(count, 2, 8, seed=1))
    (prefix,) = layout.prefix_segments
    return [(layout.self_segments, states), (prefix, states.at(prefix))]


def test_kernels_agree_on_output_and_lse(layout: Layout):
    for segments, states in attention_calls(layout):
        reference = REFERENCE.forward(states, segments, 0.3)
        for actual, expected in zip(
            CPU_SDPA.forward(states, segments, 0.3), reference, strict=True
        ):
            assert torch.allclose(actual, expected, atol=1e-12)


def test_kernels_agree_on_gradients_of_merged_attention(layout: Layout):
    for segments, states in attention_calls(layout):
        output_QHD, lse_HQ = REFERENCE.forward(states, segments, 0.3)
        merged = AttentionState(0.5 * output_QHD, lse_HQ + 0.7)
        inputs = states, merged, randn(*output_QHD.shape), segments, 0.3
        reference = REFERENCE.backward(*inputs)
        for actual, expected in zip(CPU_SDPA.backward(*inputs), reference, strict=True):
            assert torch.allclose(actual, expected, atol=1e-12)


def test_flash_attention_is_called_with_the_arguments_of_its_operators(layout: Layout):
    meta = torch.device("meta")
    for segments, on_cpu in attention_calls(layout):
        states = States(*(state.to(meta, torch.bfloat16) for state in on_cpu))
        state = FLASH.forward(states, segments.to(meta), 0.3)
        assert state.lse_HQ.shape == (4, len(states.query_QHD))
        grads = FLASH.backward(states, state, state.output_QHD, segments.to(meta), 0.3)
        assert [grad.shape for grad in grads] == [tensor.shape for tensor in states]


def test_a_kernel_is_selected_by_device_and_shape():
    states = States(randn(3, 4, 8), randn(3, 2, 8), randn(3, 2, 8))
    assert select_kernel(states) == CPU_SDPA
    assert select_kernel(states._replace(value_KJD=randn(3, 2, 5))) == REFERENCE
    assert select_kernel(States(*(state.to("meta") for state in states))) == REFERENCE
