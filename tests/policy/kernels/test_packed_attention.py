import pytest
import torch
from torch import Tensor

from grpo_cl.errors import ConfigError
from grpo_cl.policy.kernels.attention_dispatch import attend
from grpo_cl.policy.kernels.packed_attention import packed_attention
from grpo_cl.policy.kernels.packing import Layout, pack
from grpo_cl.policy.kernels.prefix_groups import PrefixGroup
from grpo_cl.policy.kernels.varlen_attention import CPU_SDPA, States, select_kernel

ROWS: dict[str, list[tuple[int, tuple[int, ...]]]] = {
    "one group": [(5, (3, 1, 4))],
    "two groups": [(5, (3, 2)), (4, (1, 6))],
    "a group between sequences without a prefix": [(0, (7,)), (3, (2, 2)), (0, (1, 1))],
    "a group of one": [(4, (3,))],
    "no prefix": [(0, (3, 8)), (0, (1,))],
    "a single token": [(0, (1,))],
    "segments of one token": [(0, (1, 1)), (1, (1, 1))],
    "more than a block": [(270, (2, 300))],
}
"""Groups: tokens of the prefix, and of each suffix."""
HEADS = [(4, 4), (4, 2), (3, 1)]
NESTED = {
    "inner groups only": [(3, [(2, (1, 4)), (3, (2, 2))], ())],
    "members in no inner group": [(3, [(2, (1, 4))], (2, 5))],
    "two outer groups and one without inner": [
        (4, [(1, (2, 1)), (2, (3, 1))], (2,)),
        (2, [], (3, 1)),
        (3, [(4, (1, 1, 2))], ()),
    ],
    "more than a block": [(300, [(280, (1, 270)), (3, (2, 2))], (260,))],
}
"""Groups: tokens of the prefix, inner groups with theirs, and suffixes in no inner group."""


def packed(lengths: list[tuple[int, tuple[int, ...]]]) -> Layout:
    sequences: list[list[int]] = []
    groups: list[PrefixGroup] = []
    for prefix, suffixes in lengths:
        members = range(len(sequences), len(sequences) + len(suffixes))
        groups.append(PrefixGroup(tuple(members), prefix))
        sequences += [[1] * (prefix + suffix) for suffix in suffixes]
    return pack(sequences, groups)


def packed_nested(name: str) -> Layout:
    sequences: list[list[int]] = []
    groups: list[PrefixGroup] = []

    def add(length: int) -> int:
        sequences.append([1] * length)
        return len(sequences) - 1

    for prefix, parts, suffixes in NESTED[name]:
        inner = [
            PrefixGroup(tuple(add(prefix + more + end) for end in ends), prefix + more)
            for more, ends in parts
        ]
        alone = [add(prefix + suffix) for suffix in suffixes]
        members = [index for part in inner for index in part.members]
        groups.append(PrefixGroup((*alone, *members), prefix, tuple(inner)))
    return pack(sequences, groups)


def random_states(
    count: int, heads: tuple[int, int], *, width: int = 8, dtype: torch.dtype = torch.float64
) -> States:
    generator = torch.Generator().manual_seed(0)
    shapes = [(count, head, width) for head in (heads[0], heads[1], heads[1])]
    tensors = (torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes)
    return States(*(tensor.requires_grad_() for tensor in tensors))


def masked_attention(layout: Layout, states: States, scale: float) -> Tensor:
    """Softmax over the whole row, masked to the tokens up to each one in its sequence."""
    count, heads, _ = states.query_QHD.shape
    visible_NN = torch.zeros(count, count, dtype=torch.bool)
    for indices in layout.gather_index_BT.tolist():
        tokens = [index for position, index in enumerate(indices) if index or not position]
        for position, index in enumerate(tokens):
            visible_NN[index, tokens[: position + 1]] = True
    group = heads // states.key_KJD.shape[1]
    keys, values = (state.repeat_interleave(group, 1) for state in states[1:])
    scores = torch.einsum("qhd,khd->hqk", states.query_QHD, keys) * scale
    weights = scores.masked_fill(~visible_NN, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values)


def gradients(output: Tensor, states: States) -> tuple[Tensor, ...]:
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    return torch.autograd.grad((output * weights).sum(), states)


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-9) -> bool:
    return torch.allclose(actual, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("heads", HEADS)
def test_packed_attention_is_one_softmax_over_prefix_and_suffix(row: str, heads: tuple[int, int]):
    layout = packed(ROWS[row])
    states = random_states(layout.ids_1N.numel(), heads)
    expected = masked_attention(layout, states, 0.3)
    actual = packed_attention(layout, states, 0.3)
    assert close(actual, expected)
    for grad, wanted in zip(gradients(actual, states), gradients(expected, states), strict=True):
        assert close(grad, wanted)


@pytest.mark.parametrize("row", NESTED)
def test_suffix_attends_to_both_prefixes_of_a_nested_group(row: str):
    layout = packed_nested(row)
    states = random_states(layout.ids_1N.numel(), (4, 2))
    actual, expected = packed_attention(layout, states, 0.3), masked_attention(layout, states, 0.3)
    assert close(actual, expected)
    for grad, wanted in zip(gradients(actual, states), gradients(expected, states), strict=True):
        assert close(grad, wanted)


@pytest.mark.parametrize("row", ROWS)
def test_values_may_be_wider_than_keys(row: str):
    layout = packed(ROWS[row])
    query, key, _ = random_states(layout.ids_1N.numel(), (4, 2))
    states = States(query, key, random_states(len(key), (4, 2), width=11).value_KJD)
    assert select_kernel(states) is not CPU_SDPA, "this test covers the other CPU kernel"
    actual, expected = (
        packed_attention(layout, states, None),
        masked_attention(layout, states, 8**-0.5),
    )
    assert close(actual, expected)
    for grad, wanted in zip(gradients(actual, states), gradients(expected, states), strict=True):
        assert close(grad, wanted)


def test_bfloat16_differs_only_by_rounding():
    layout = packed(ROWS["two groups"])
    exact = random_states(layout.ids_1N.numel(), (4, 2))
    rounded = States(*(state.detach().bfloat16().requires_grad_() for state in exact))
    actual, expected = (
        packed_attention(layout, rounded, None),
        masked_attention(layout, exact, 8**-0.5),
    )
    assert actual.dtype == torch.bfloat16
    assert close(actual.double(), expected, 0.03)
    for grad, wanted in zip(gradients(actual, rounded), gradients(expected, exact), strict=True):
        assert close(grad.double(), wanted, 0.05)


def test_no_graph_is_built_in_inference_mode():
    layout = packed(ROWS["one group"])
    states = random_states(layout.ids_1N.numel(), (4, 2))
    with torch.inference_mode():
        actual = packed_attention(layout, states, None)
    assert close(actual, masked_attention(layout, states, 8**-0.5))
    assert not actual.requires_grad


def test_only_states_output_and_lse_are_saved_for_backward():
    layout = packed(ROWS["two groups"])
    states = random_states(layout.ids_1N.numel(), (4, 2), dtype=torch.float32)
    saved: list[Tensor] = []

    def save(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        output = packed_attention(layout, states, None)
    storages = {tensor.untyped_storage().data_ptr(): tensor.nbytes for tensor in saved}
    lse_bytes = 4 * 4 * len(output)
    assert sum(storages.values()) == sum(t.nbytes for t in (*states, output)) + lse_bytes


def test_dropout_in_a_packed_row_is_an_error():
    layout = packed(ROWS["one group"])
    query, key, value = (state.transpose(0, 1)[None] for state in random_states(13, (4, 2)))
    with pytest.raises(ConfigError, match=r"attention dropout 0.1 .* set it to 0"):
        attend(torch.nn.Identity(), query, key, value, None, layout=layout, dropout=0.1)
