import pytest
import torch
from torch import Tensor

from grpo_cl.policy.kernels import FLASH, ONE_BY_ONE, PLAIN, Seen, States, kernel_for
from grpo_cl.policy.packing import Layout, Runs, pack
from grpo_cl.policy.siblings import Family

FAMILIES = [Family((0, 1), 3), Family((2,), 0), Family((3, 4, 5), 300)]
LENGTHS = (5, 4, 1, 301, 310, 600)


@pytest.fixture
def layout() -> Layout:
    return pack([[1] * length for length in LENGTHS], FAMILIES)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def looks(layout: Layout) -> list[tuple[Runs, States]]:
    count = layout.ids_1N.numel()
    states = States(drawn(count, 4, 8), drawn(count, 2, 8), drawn(count, 2, 8, seed=1))
    assert layout.onward
    return [(layout.own, states), (layout.onward, states.at(layout.onward))]


def test_kernels_see_the_same(layout: Layout):
    for runs, states in looks(layout):
        found, expected = PLAIN.look(states, runs, 0.3), ONE_BY_ONE.look(states, runs, 0.3)
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.allclose(ours, theirs, atol=1e-12)


def test_kernels_go_back_alike_also_from_a_larger_look(layout: Layout):
    for runs, states in looks(layout):
        output_QHD, lse_HQ = PLAIN.look(states, runs, 0.3)
        larger = Seen(0.5 * output_QHD, lse_HQ + 0.7)
        given = states, larger, drawn(*output_QHD.shape), runs, 0.3
        for ours, theirs in zip(PLAIN.look_back(*given), ONE_BY_ONE.look_back(*given), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-12)


def test_flash_attention_is_called_as_its_operators_want(layout: Layout):
    nowhere = torch.device("meta")
    for runs, states in looks(layout):
        given = States(*(state.to(nowhere, torch.bfloat16) for state in states))
        seen = FLASH.look(given, runs.to(nowhere), 0.3)
        assert seen.lse_HQ.shape == (4, len(given.query_QHD))
        found = FLASH.look_back(given, seen, seen.output_QHD, runs.to(nowhere), 0.3)
        assert [grad.shape for grad in found] == [state.shape for state in given]


def test_any_states_have_a_kernel():
    states = States(drawn(3, 4, 8), drawn(3, 2, 8), drawn(3, 2, 8))
    assert kernel_for(states) == ONE_BY_ONE
    assert kernel_for(states._replace(value_KJD=drawn(3, 2, 5))) == PLAIN
    assert kernel_for(States(*(state.to("meta") for state in states))) == PLAIN
