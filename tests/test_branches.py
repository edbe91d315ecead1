import pytest
import torch
from torch import Tensor

from grpo_cl.errors import ConfigError
from grpo_cl.policy.attention import attend
from grpo_cl.policy.branches import attend_branches
from grpo_cl.policy.kernels import ONE_BY_ONE, States, kernel_for
from grpo_cl.policy.packing import Layout, pack
from grpo_cl.policy.siblings import Family

ROWS: dict[str, list[tuple[int, tuple[int, ...]]]] = {
    "one family": [(5, (3, 1, 4))],
    "two families in succession": [(5, (3, 2)), (4, (1, 6))],
    "a family between others without a beginning": [(0, (7,)), (3, (2, 2)), (0, (1, 1))],
    "a family of one": [(4, (3,))],
    "no beginning": [(0, (3, 8)), (0, (1,))],
    "a single token": [(0, (1,))],
    "tokens by themselves": [(0, (1, 1)), (1, (1, 1))],
    "more than a block": [(270, (2, 300))],
}
"""Families: how many tokens their members begin with, and how many each has besides."""
HEADS = [(4, 4), (4, 2), (3, 1)]


def laid_out(families: list[tuple[int, tuple[int, ...]]]) -> Layout:
    sequences: list[list[int]] = []
    found: list[Family] = []
    for shared, rests in families:
        numbers = range(len(sequences), len(sequences) + len(rests))
        found.append(Family(tuple(numbers), shared))
        sequences += [[1] * (shared + rest) for rest in rests]
    return pack(sequences, found)


def random_states(
    count: int, heads: tuple[int, int], *, width: int = 8, dtype: torch.dtype = torch.float64
) -> States:
    chance = torch.Generator().manual_seed(0)
    shapes = [(count, head, width) for head in (heads[0], heads[1], heads[1])]
    made = (torch.randn(shape, generator=chance, dtype=dtype) for shape in shapes)
    return States(*(state.requires_grad_() for state in made))


def by_mask(layout: Layout, states: States, scale: float) -> Tensor:
    """Softmax over all of the row, where a token sees those before it in its sequence."""
    count, heads, _ = states.query_QHD.shape
    seen_NN = torch.zeros(count, count, dtype=torch.bool)
    for places in layout.places_BT.tolist():
        own = [place for number, place in enumerate(places) if place or not number]
        for number, place in enumerate(own):
            seen_NN[place, own[: number + 1]] = True
    groups = heads // states.key_KJD.shape[1]
    keys, values = (state.repeat_interleave(groups, 1) for state in states[1:])
    scores = torch.einsum("qhd,khd->hqk", states.query_QHD, keys) * scale
    weights = scores.masked_fill(~seen_NN, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values)


def gradients(output: Tensor, states: States) -> tuple[Tensor, ...]:
    wanted = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    return torch.autograd.grad((output * wanted).sum(), states)


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-9) -> bool:
    return torch.allclose(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("heads", HEADS)
def test_two_looks_are_one_softmax_over_all_that_a_token_sees(row: str, heads: tuple[int, int]):
    layout = laid_out(ROWS[row])
    states = random_states(layout.ids_1N.numel(), heads)
    expected = by_mask(layout, states, 0.3)
    found = attend_branches(layout, states, 0.3)
    assert close(found, expected)
    for ours, theirs in zip(gradients(found, states), gradients(expected, states), strict=True):
        assert close(ours, theirs)


@pytest.mark.parametrize("row", ROWS)
def test_values_may_be_wider_than_keys(row: str):
    layout = laid_out(ROWS[row])
    query, key, _ = random_states(layout.ids_1N.numel(), (4, 2))
    states = States(query, key, random_states(len(key), (4, 2), width=11).value_KJD)
    assert kernel_for(states) is not ONE_BY_ONE, "so that both kernels of a CPU are tried"
    found, expected = attend_branches(layout, states, None), by_mask(layout, states, 8**-0.5)
    assert close(found, expected)
    for ours, theirs in zip(gradients(found, states), gradients(expected, states), strict=True):
        assert close(ours, theirs)


def test_half_precision_is_as_near_as_its_rounding():
    layout = laid_out(ROWS["two families in succession"])
    exact = random_states(layout.ids_1N.numel(), (4, 2))
    rounded = States(*(state.detach().bfloat16().requires_grad_() for state in exact))
    found, expected = attend_branches(layout, rounded, None), by_mask(layout, exact, 8**-0.5)
    assert found.dtype == torch.bfloat16
    assert close(found.double(), expected, 0.03)
    for ours, theirs in zip(gradients(found, rounded), gradients(expected, exact), strict=True):
        assert close(ours.double(), theirs, 0.05)


def test_nothing_is_kept_where_no_gradient_is_wanted():
    layout = laid_out(ROWS["one family"])
    states = random_states(layout.ids_1N.numel(), (4, 2))
    with torch.inference_mode():
        found = attend_branches(layout, states, None)
    assert close(found, by_mask(layout, states, 8**-0.5))
    assert not found.requires_grad


def test_queries_keys_values_and_what_was_seen_are_all_that_is_kept():
    layout = laid_out(ROWS["two families in succession"])
    states = random_states(layout.ids_1N.numel(), (4, 2), dtype=torch.float32)
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = attend_branches(layout, states, None)
    places = {tensor.untyped_storage().data_ptr(): tensor.nbytes for tensor in kept}
    assert sum(places.values()) == sum(one.nbytes for one in (*states, output)) + 4 * 4 * len(
        output
    )


def test_dropout_has_no_place_in_a_packed_row():
    layout = laid_out(ROWS["one family"])
    query, key, value = (state.transpose(0, 1)[None] for state in random_states(13, (4, 2)))
    with pytest.raises(ConfigError, match=r"attention dropout 0.1 .* set it to 0"):
        attend(torch.nn.Identity(), query, key, value, None, layout=layout, dropout=0.1)
