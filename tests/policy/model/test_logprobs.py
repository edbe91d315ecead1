from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_cl.errors import ConfigError
from grpo_cl.policy.kernels.packing import Layout, pack
from grpo_cl.policy.kernels.prefix_groups import PrefixGroup, group_by_prefix
from grpo_cl.policy.model.policy_model import PolicyModel
from tiny_policies import (
    ARCHITECTURES,
    batch,
    close,
    config,
    full_logprobs,
    gradients,
    load,
    save_model,
)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "llama")


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_chunked_logprobs_and_gradients_equal_those_of_full_logits(
    tmp_path: Path, architecture: str
):
    policy = load(save_model(tmp_path, architecture), kl_coef=0)
    ids_BT, attention_BT = batch()
    weights_BT = torch.linspace(-1, 1, 36).view(3, 12)
    expected_BT = full_logprobs(policy, ids_BT, attention_BT, 0.7)
    expected_gradients = gradients(policy, (expected_BT * weights_BT).sum())
    scores = policy.logprobs(ids_BT, attention_BT, temperature=0.7, max_logits=4 * 300)
    found = gradients(policy, (scores.logprobs_BT * weights_BT).sum())
    assert torch.allclose(scores.logprobs_BT, expected_BT, atol=1e-5)
    assert close(found, expected_gradients)
    assert policy._computer._has_separate_head, "the head of this architecture is known"


def test_model_whose_head_is_not_separate_uses_full_logits(model_dir: Path):
    policy = load(model_dir, kl_coef=0)
    ids_BT, attention_BT = batch()
    hook = policy.module.register_forward_hook(double_logits)
    other = PolicyModel.build(policy.module, policy.tokenizer, policy._source, config(model_dir))
    assert not other._computer._has_separate_head
    expected_BT = full_logprobs(policy, ids_BT, attention_BT, 1.0)
    found_BT = other.logprobs(ids_BT, attention_BT, max_logits=900).logprobs_BT
    assert torch.allclose(found_BT, expected_BT, atol=1e-5)
    hook.remove()


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
@pytest.mark.parametrize("checkpointing", [False, True])
def test_packing_changes_neither_logprobs_nor_gradients(
    tmp_path: Path, architecture: str, checkpointing: bool
):
    folder = save_model(tmp_path, architecture)
    policy = load(folder, kl_coef=0, gradient_checkpointing=checkpointing)
    policy.module.train()  # checkpointing needs training mode
    for module in policy.module.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    ids_BT, attention_BT = with_common_prefix(prefix_length=33, suffix_lengths=(3, 7, 1))
    expected_BT = full_logprobs(policy, ids_BT, attention_BT, 0.7)
    weights_BT = torch.linspace(-1, 1, expected_BT.numel()).view_as(expected_BT)
    expected_gradients = gradients(policy, (expected_BT * weights_BT).sum())
    scores = policy.logprobs(
        ids_BT, attention_BT, temperature=0.7, layout=layout(ids_BT, attention_BT)
    )
    found = gradients(policy, (scores.logprobs_BT * weights_BT).sum())
    assert torch.allclose(scores.logprobs_BT, expected_BT, atol=1e-5)
    assert close(found, expected_gradients)


def test_gradients_of_nested_groups_are_those_of_padded_sequences(model_dir: Path):
    policy = load(model_dir, kl_coef=0)
    ids_BT, attention_BT = with_common_prefix(prefix_length=33, suffix_lengths=(3, 7, 1))
    expected_BT = full_logprobs(policy, ids_BT, attention_BT, 0.7)
    weights_BT = torch.linspace(-1, 1, expected_BT.numel()).view_as(expected_BT)
    expected_gradients = gradients(policy, (expected_BT * weights_BT).sum())
    lengths = attention_BT.sum(1).tolist()
    sequences = [row[:length] for row, length in zip(ids_BT.tolist(), lengths, strict=True)]
    nested = pack(sequences, [PrefixGroup((0, 1, 2), 20, inner=(PrefixGroup((0, 2), 33),))])
    scores = policy.logprobs(ids_BT, attention_BT, temperature=0.7, layout=nested)
    assert torch.allclose(scores.logprobs_BT, expected_BT, atol=1e-5)
    found = gradients(policy, (scores.logprobs_BT * weights_BT).sum())
    assert close(found, expected_gradients)


def with_common_prefix(
    prefix_length: int, suffix_lengths: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    width = prefix_length + max(suffix_lengths)
    ids_BT = torch.randint(1, 200, (len(suffix_lengths), width), generator=generator)
    ids_BT[:, :prefix_length] = ids_BT[0, :prefix_length]
    lengths_B1 = torch.tensor([[prefix_length + length] for length in suffix_lengths])
    attention_BT = (torch.arange(width) < lengths_B1).long()
    return ids_BT * attention_BT, attention_BT


def layout(ids_BT: torch.Tensor, attention_BT: torch.Tensor) -> Layout:
    lengths = attention_BT.sum(1).tolist()
    sequences = [row[:length] for row, length in zip(ids_BT.tolist(), lengths, strict=True)]
    return pack(sequences, group_by_prefix(sequences))


def test_layout_maps_every_token_to_its_index_in_the_packed_row():
    sequences = [(1, 2, 3, 9), (5, 6), (1, 2, 3, 7, 8)]
    found = pack(sequences, [PrefixGroup((0, 2), 3), PrefixGroup((1,), 0)])
    assert found.ids_1N.tolist() == [[5, 6, 1, 2, 3, 9, 7, 8]]
    assert found.positions_1N.tolist() == [[0, 1, 0, 1, 2, 3, 3, 4]]
    assert found.gather_index_BT.tolist() == [[2, 3, 4, 5, 0], [0, 1, 0, 0, 0], [2, 3, 4, 6, 7]]
    assert found.self_segments.queries == found.self_segments.keys == slice(0, 8)
    assert (
        found.self_segments.cu_seqlens_q.tolist()
        == found.self_segments.cu_seqlens_k.tolist()
        == [0, 2, 5, 6, 8]
    )
    (prefix,) = found.prefix_segments
    assert (prefix.queries, prefix.keys) == (slice(5, 8), slice(2, 5))
    assert prefix.cu_seqlens_q.tolist() == prefix.cu_seqlens_k.tolist() == [0, 3]


def test_inner_prefixes_stand_between_prefixes_and_suffixes():
    sequences = [(1, 2, 7), (1, 3, 4, 5), (1, 3, 4, 6, 6), (8, 9), (8, 7)]
    inner = PrefixGroup((0, 1, 2), 1, inner=(PrefixGroup((1, 2), 3),))
    found = pack(sequences, [inner, PrefixGroup((3, 4), 1)])
    assert found.ids_1N.tolist() == [[8, 1, 3, 4, 9, 7, 2, 7, 5, 6, 6]]
    assert found.positions_1N.tolist() == [[0, 0, 1, 2, 1, 1, 1, 2, 3, 3, 4]]
    assert found.gather_index_BT.tolist() == [
        [1, 6, 7, 0, 0],
        [1, 2, 3, 8, 0],
        [1, 2, 3, 9, 10],
        [0, 4, 0, 0, 0],
        [0, 5, 0, 0, 0],
    ]
    calls = [(call.queries, call.keys) for call in found.prefix_segments]
    assert calls == [
        (slice(4, 11), slice(0, 2)),  # suffixes, to the prefixes of both groups
        (slice(2, 4), slice(1, 2)),  # the inner prefix, to the outer one
        (slice(8, 11), slice(2, 4)),  # its suffixes, to the inner prefix
    ]
    assert [call.cu_seqlens_q.tolist() for call in found.prefix_segments] == [
        [0, 2, 7],
        [0, 2],
        [0, 3],
    ]


def test_each_prefix_group_attends_to_its_own_prefix():
    sequences = [(1, 2, 3), (1, 4), (5,), (6, 7, 8), (6, 7, 9, 9)]
    found = pack(
        sequences, [PrefixGroup((0, 1), 1), PrefixGroup((2,), 0), PrefixGroup((3, 4), 2)]
    ).prefix_segments[0]
    assert (found.queries, found.keys) == (slice(4, 10), slice(1, 4))
    assert (found.cu_seqlens_q.tolist(), found.cu_seqlens_k.tolist()) == ([0, 3, 6], [0, 1, 3])
    assert found.max_seqlens == (3, 2)
    alone = pack(sequences, [PrefixGroup((number,), 0) for number in range(5)])
    assert alone.prefix_segments == ()


def test_model_with_attention_dropout_is_not_packed(model_dir: Path):
    policy = load(model_dir, kl_coef=0)
    assert policy._computer._can_pack
    policy.module.config.attention_dropout = 0.1
    assert not PolicyModel.build(
        policy.module, policy.tokenizer, policy._source, config(model_dir)
    )._computer._can_pack


def test_common_prefix_is_computed_once(model_dir: Path):
    policy = load(model_dir, kl_coef=0)
    ids_BT, attention_BT = with_common_prefix(prefix_length=40, suffix_lengths=(2, 2, 2))
    computed: list[int] = []
    hook = policy.module.get_input_embeddings().register_forward_hook(
        lambda _module, inputs, _output: computed.append(inputs[0].numel())
    )
    policy.logprobs(ids_BT, attention_BT, layout=layout(ids_BT, attention_BT))
    hook.remove()
    assert computed == [46]


def double_logits(_module: Any, _inputs: Any, output: Any) -> Any:
    output.logits = 2 * output.logits
    return output


def test_only_masked_positions_are_scored_and_get_gradients(model_dir: Path):
    policy = load(model_dir, kl_coef=0)
    ids_BT, attention_BT = batch()
    mask_BT = torch.zeros(3, 12, dtype=torch.bool)
    mask_BT[0, 3:6] = mask_BT[1, 8] = mask_BT[1, 10] = True  # the last one is padding
    unmasked_BT = full_logprobs(policy, ids_BT, attention_BT, 1.0)
    scores = policy.logprobs(ids_BT, attention_BT, mask_BT=mask_BT)
    assert torch.allclose(scores.logprobs_BT, unmasked_BT * mask_BT, atol=1e-6)
    assert scores.entropy_BT.count_nonzero() == 4
    expected_gradients = gradients(policy, (unmasked_BT * mask_BT).sum())
    assert close(
        gradients(policy, policy.logprobs(ids_BT, attention_BT, mask_BT=mask_BT).logprobs_BT.sum()),
        expected_gradients,
    )


def test_empty_mask_gives_zeros_with_a_backward_pass(model_dir: Path):
    policy = load(model_dir, kl_coef=0)
    ids_BT, attention_BT = batch()
    zeros_BT = policy.logprobs(ids_BT, attention_BT, mask_BT=torch.zeros(3, 12)).logprobs_BT
    found = gradients(policy, zeros_BT.sum())
    assert zeros_BT.count_nonzero() == 0
    assert all(grad.count_nonzero() == 0 for grad in found.values())


def test_logits_stay_below_max_logits_in_forward_and_backward(model_dir: Path):
    policy = load(model_dir, kl_coef=0)
    sizes: list[int] = []
    head = policy.module.get_output_embeddings()
    assert head is not None
    head.register_forward_hook(lambda _m, _i, logits: sizes.append(logits.numel()))
    ids_BT, attention_BT = batch()
    policy.logprobs(ids_BT, attention_BT, max_logits=5 * 300).logprobs_BT.sum().backward()
    assert max(sizes) == 5 * 300
    # 23 scored positions in chunks of 5, twice, and the last position of 3 rows.
    assert sum(sizes) == (2 * 23 + 3) * 300


def test_entropy_is_that_of_the_full_distribution(model_dir: Path):
    policy = load(model_dir, kl_coef=0)
    ids_BT, attention_BT = batch()
    logits_BTV = policy.module(ids_BT, attention_mask=attention_BT).logits / 0.5
    expected_BT = torch.distributions.Categorical(logits=logits_BTV[:, :-1]).entropy()
    found_BT = policy.logprobs(ids_BT, attention_BT, temperature=0.5).entropy_BT
    assert torch.allclose(found_BT[:, 1:], expected_BT * attention_BT[:, 1:], atol=1e-5)
    assert not found_BT.requires_grad


def test_temperature_zero_is_an_error(model_dir: Path):
    with pytest.raises(ConfigError, match="must be above 0"):
        load(model_dir).logprobs(*batch(), temperature=0.0)
