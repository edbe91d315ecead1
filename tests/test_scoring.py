from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_cl.errors import ConfigError
from grpo_cl.policy.model import PolicyModel
from grpo_cl.policy.packing import Layout, pack
from grpo_cl.policy.siblings import Family, families
from tiny_policies import ARCHITECTURES, batch, close, config, gradients, load, plain, save_model


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "llama")


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_chunked_logprobs_and_their_gradients_are_those_of_the_whole_logits(
    tmp_path: Path, architecture: str
):
    policy = load(save_model(tmp_path, architecture), kl_coef=0)
    ids_BT, attention_BT = batch()
    weights_BT = torch.linspace(-1, 1, 36).view(3, 12)
    expected_BT = plain(policy, ids_BT, attention_BT, 0.7)
    wanted = gradients(policy, (expected_BT * weights_BT).sum())
    scores = policy.logprobs(ids_BT, attention_BT, temperature=0.7, max_logits=4 * 300)
    found = gradients(policy, (scores.logprobs_BT * weights_BT).sum())
    assert torch.allclose(scores.logprobs_BT, expected_BT, atol=1e-5)
    assert close(found, wanted)
    assert policy._scorer._is_split, "the head of this architecture is known"


def test_a_head_that_cannot_be_taken_apart_is_scored_from_whole_logits(model_dir: Path):
    policy = load(model_dir, kl_coef=0)
    ids_BT, attention_BT = batch()
    doubled = policy.module.register_forward_hook(double_logits)
    other = PolicyModel(policy.module, policy.tokenizer, policy._source, config(model_dir))
    assert not other._scorer._is_split
    expected_BT = plain(policy, ids_BT, attention_BT, 1.0)
    found_BT = other.logprobs(ids_BT, attention_BT, max_logits=900).logprobs_BT
    assert torch.allclose(found_BT, expected_BT, atol=1e-5)
    doubled.remove()


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_packed_row_changes_neither_logprobs_nor_gradients(
    tmp_path: Path, architecture: str, checkpointing: bool
):
    folder = save_model(tmp_path, architecture)
    policy = load(folder, kl_coef=0, gradient_checkpointing=checkpointing)
    policy.module.train()  # checkpoints are for training; nothing is dropped here
    for module in policy.module.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    ids_BT, attention_BT = beginning_alike(shared=33, rest=(3, 7, 1))
    expected_BT = plain(policy, ids_BT, attention_BT, 0.7)
    weights_BT = torch.linspace(-1, 1, expected_BT.numel()).view_as(expected_BT)
    wanted = gradients(policy, (expected_BT * weights_BT).sum())
    scores = policy.logprobs(
        ids_BT, attention_BT, temperature=0.7, layout=layout(ids_BT, attention_BT)
    )
    found = gradients(policy, (scores.logprobs_BT * weights_BT).sum())
    assert torch.allclose(scores.logprobs_BT, expected_BT, atol=1e-5)
    assert close(found, wanted)


def beginning_alike(shared: int, rest: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    width = shared + max(rest)
    ids_BT = torch.randint(1, 200, (len(rest), width), generator=generator)
    ids_BT[:, :shared] = ids_BT[0, :shared]
    lengths_B1 = torch.tensor([[shared + length] for length in rest])
    attention_BT = (torch.arange(width) < lengths_B1).long()
    return ids_BT * attention_BT, attention_BT


def layout(ids_BT: torch.Tensor, attention_BT: torch.Tensor) -> Layout:
    lengths = attention_BT.sum(1).tolist()
    sequences = [row[:length] for row, length in zip(ids_BT.tolist(), lengths, strict=True)]
    return pack(sequences, families(sequences))


def test_every_token_has_its_place_in_the_row():
    sequences = [(1, 2, 3, 9), (5, 6), (1, 2, 3, 7, 8)]
    found = pack(sequences, [Family((0, 2), 3), Family((1,), 0)])
    assert found.ids_1N.tolist() == [[5, 6, 1, 2, 3, 9, 7, 8]]
    assert found.positions_1N.tolist() == [[0, 1, 0, 1, 2, 3, 3, 4]]
    assert found.places_BT.tolist() == [[2, 3, 4, 5, 0], [0, 1, 0, 0, 0], [2, 3, 4, 6, 7]]
    assert found.own.queries == found.own.keys == slice(0, 8)
    assert found.own.query_ends.tolist() == found.own.key_ends.tolist() == [0, 2, 5, 6, 8]
    assert found.onward is not None
    assert (found.onward.queries, found.onward.keys) == (slice(5, 8), slice(2, 5))
    assert found.onward.query_ends.tolist() == found.onward.key_ends.tolist() == [0, 3]


def test_the_families_of_a_row_look_at_their_own_beginnings():
    sequences = [(1, 2, 3), (1, 4), (5,), (6, 7, 8), (6, 7, 9, 9)]
    found = pack(sequences, [Family((0, 1), 1), Family((2,), 0), Family((3, 4), 2)]).onward
    assert found is not None
    assert (found.queries, found.keys) == (slice(4, 10), slice(1, 4))
    assert (found.query_ends.tolist(), found.key_ends.tolist()) == ([0, 3, 6], [0, 1, 3])
    assert found.longest == (3, 2)
    assert pack(sequences, [Family((number,), 0) for number in range(5)]).onward is None


def test_a_model_that_drops_attention_is_read_padded(model_dir: Path):
    policy = load(model_dir, kl_coef=0)
    assert policy._scorer._can_pack
    policy.module.config.attention_dropout = 0.1
    assert not PolicyModel(
        policy.module, policy.tokenizer, policy._source, config(model_dir)
    )._scorer._can_pack


def test_the_beginning_is_read_once(model_dir: Path):
    policy = load(model_dir, kl_coef=0)
    ids_BT, attention_BT = beginning_alike(shared=40, rest=(2, 2, 2))
    read: list[int] = []
    count = policy.module.get_input_embeddings().register_forward_hook(
        lambda _module, inputs, _output: read.append(inputs[0].numel())
    )
    policy.logprobs(ids_BT, attention_BT, layout=layout(ids_BT, attention_BT))
    count.remove()
    assert read == [46]


def double_logits(_module: Any, _inputs: Any, output: Any) -> Any:
    output.logits = 2 * output.logits
    return output


def test_only_masked_positions_are_scored_and_get_gradients(model_dir: Path):
    policy = load(model_dir, kl_coef=0)
    ids_BT, attention_BT = batch()
    mask_BT = torch.zeros(3, 12, dtype=torch.bool)
    mask_BT[0, 3:6] = mask_BT[1, 8] = mask_BT[1, 10] = True  # the last one is padding
    everything = plain(policy, ids_BT, attention_BT, 1.0)
    scores = policy.logprobs(ids_BT, attention_BT, mask_BT=mask_BT)
    assert torch.allclose(scores.logprobs_BT, everything * mask_BT, atol=1e-6)
    assert scores.entropy_BT.count_nonzero() == 4
    wanted = gradients(policy, (everything * mask_BT).sum())
    assert close(
        gradients(policy, policy.logprobs(ids_BT, attention_BT, mask_BT=mask_BT).logprobs_BT.sum()),
        wanted,
    )


def test_an_empty_mask_gives_zeros_that_still_have_a_backward_pass(model_dir: Path):
    policy = load(model_dir, kl_coef=0)
    ids_BT, attention_BT = batch()
    nothing = policy.logprobs(ids_BT, attention_BT, mask_BT=torch.zeros(3, 12)).logprobs_BT
    found = gradients(policy, nothing.sum())
    assert nothing.count_nonzero() == 0
    assert all(grad.count_nonzero() == 0 for grad in found.values())


def test_logits_never_exceed_their_limit_in_either_pass(model_dir: Path):
    policy = load(model_dir, kl_coef=0)
    sizes: list[int] = []
    head = policy.module.get_output_embeddings()
    assert head is not None
    head.register_forward_hook(lambda _m, _i, logits: sizes.append(logits.numel()))
    ids_BT, attention_BT = batch()
    policy.logprobs(ids_BT, attention_BT, max_logits=5 * 300).logprobs_BT.sum().backward()
    assert max(sizes) == 5 * 300
    # 23 scored positions in chunks of 5, twice, beside one look at the last position of 3 rows.
    assert sum(sizes) == (2 * 23 + 3) * 300


def test_entropy_is_that_of_the_whole_distribution(model_dir: Path):
    policy = load(model_dir, kl_coef=0)
    ids_BT, attention_BT = batch()
    logits_BTV = policy.module(ids_BT, attention_mask=attention_BT).logits / 0.5
    expected_BT = torch.distributions.Categorical(logits=logits_BTV[:, :-1]).entropy()
    found_BT = policy.logprobs(ids_BT, attention_BT, temperature=0.5).entropy_BT
    assert torch.allclose(found_BT[:, 1:], expected_BT * attention_BT[:, 1:], atol=1e-5)
    assert not found_BT.requires_grad


def test_temperature_zero_is_refused(model_dir: Path):
    with pytest.raises(ConfigError, match="must be above 0"):
        load(model_dir).logprobs(*batch(), temperature=0.0)
