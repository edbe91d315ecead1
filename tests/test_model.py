from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_cl.errors import CheckpointError, ConfigError
from grpo_cl.policy.reference import trainable
from tiny_policies import TEMPLATE, batch, close, gradients, load, move, save_model


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "llama")


@pytest.mark.parametrize("rank", [0, 4])
def test_gradient_checkpointing_gives_the_same_gradients(model_dir: Path, rank: int):
    found: list[dict[str, Tensor]] = []
    calls: list[int] = []
    for checkpointing in (False, True):
        policy = load(model_dir, gradient_checkpointing=checkpointing, lora={"r": rank})
        policy.module.train()
        passes: list[int] = []
        part = next(m for m in policy.module.modules() if type(m).__name__ == "LlamaAttention")
        part.register_forward_hook(lambda *_, passes=passes: passes.append(1))
        found.append(gradients(policy, policy.logprobs(*batch()).logprobs_BT.sum()))
        calls.append(len(passes))
    assert close(found[0], found[1])
    assert calls == [1, 2]


def test_the_lora_reference_is_the_base_model_exactly(model_dir: Path):
    base = load(model_dir, kl_coef=0).logprobs(*batch()).logprobs_BT
    policy = load(model_dir, lora={"r": 4})
    move(policy)
    moved = policy.logprobs(*batch()).logprobs_BT
    before = [name for name, _ in policy.trainable()]
    with policy.reference():
        reference = policy.logprobs(*batch()).logprobs_BT
    assert torch.equal(reference, base)
    assert not reference.requires_grad
    assert not torch.allclose(moved, base, atol=1e-3)
    assert torch.equal(policy.logprobs(*batch()).logprobs_BT, moved)
    assert [name for name, _ in policy.trainable()] == before


def test_a_full_reference_stays_while_the_weights_move(model_dir: Path):
    policy = load(model_dir, kl_coef=0.1)
    start = policy.logprobs(*batch()).logprobs_BT
    move(policy)
    with policy.reference():
        assert torch.equal(policy.logprobs(*batch()).logprobs_BT, start)
    assert not torch.allclose(policy.logprobs(*batch()).logprobs_BT, start, atol=1e-3)


@pytest.mark.parametrize("settings", [{"kl_coef": 0.1}, {"kl_coef": 0.0}, {"lora": {"r": 4}}])
def test_a_refreshed_reference_is_the_policy_of_that_moment(
    model_dir: Path, settings: dict[str, Any]
):
    policy = load(model_dir, **settings)
    move(policy)
    then = policy.logprobs(*batch()).logprobs_BT
    policy.refresh_reference()
    move(policy)
    now = policy.logprobs(*batch()).logprobs_BT
    with policy.reference():
        assert torch.equal(policy.logprobs(*batch()).logprobs_BT, then)
    assert torch.equal(policy.logprobs(*batch()).logprobs_BT, now)


@pytest.mark.parametrize("refreshed", [False, True])
def test_a_backward_pass_survives_a_look_at_the_reference(model_dir: Path, refreshed: bool):
    policy = load(model_dir, lora={"r": 4}, gradient_checkpointing=True)
    move(policy)
    policy.module.train()
    if refreshed:
        policy.refresh_reference()
        move(policy)
    wanted = gradients(policy, policy.logprobs(*batch()).logprobs_BT.sum())
    loss = policy.logprobs(*batch()).logprobs_BT.sum()
    with policy.reference():
        policy.logprobs(*batch())
        assert not policy.module.training
    assert policy.module.training
    found = gradients(policy, loss)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_without_a_reference_asking_for_it_says_how_to_have_one(model_dir: Path):
    with (
        pytest.raises(ConfigError, match="set kl_coef above 0"),
        load(model_dir, kl_coef=0).reference(),
    ):
        pass


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_saved_policy_loads_bit_for_bit_in_transformers(
    tmp_path: Path, architecture: str, dtype: str
):
    policy = load(save_model(tmp_path / "base", architecture), model_dtype=dtype)
    move(policy)
    policy.save(tmp_path / "saved")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=dtype)
    again = dict(model.named_parameters())
    assert all(torch.equal(again[name], weight) for name, weight in policy.trainable())
    assert load(tmp_path / "saved", model_dtype=dtype).fingerprint() == policy.fingerprint()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert tokenizer.chat_template == TEMPLATE
    assert tokenizer("Hä? 12").input_ids == policy.tokenizer("Hä? 12").input_ids
    files = {file.name for file in (tmp_path / "saved").iterdir()}
    assert {"model.safetensors", "generation_config.json", "README.md"} <= files


def test_a_saved_adapter_loads_bit_for_bit_in_peft(model_dir: Path, tmp_path: Path):
    policy = load(model_dir, lora={"r": 4})
    move(policy)
    policy.save(tmp_path)
    assert not (tmp_path / "model.safetensors").exists()
    model = AutoPeftModelForCausalLM.from_pretrained(tmp_path, is_trainable=True)
    again = dict(trainable(model))
    assert all(torch.equal(again[name], weight) for name, weight in policy.trainable())
    assert f"started from `{model_dir}`" in (tmp_path / "README.md").read_text()


def test_weights_are_as_readable_as_the_files_beside_them(model_dir: Path, tmp_path: Path):
    load(model_dir).save(tmp_path)
    modes = {(tmp_path / name).stat().st_mode for name in ("config.json", "model.safetensors")}
    assert len(modes) == 1


def test_licences_go_where_the_weights_go(tmp_path: Path):
    base = save_model(tmp_path / "base")
    (base / "LICENSE").write_text("Do what is right.")
    load(base).save(tmp_path / "saved")
    assert (tmp_path / "saved" / "LICENSE").read_text() == "Do what is right."


@pytest.mark.parametrize("settings", [{"kl_coef": 0.1}, {"lora": {"r": 4}}])
def test_a_state_brings_back_weights_and_refreshed_reference(
    model_dir: Path, settings: dict[str, Any]
):
    policy = load(model_dir, **settings)
    assert all(name.startswith("policy.") for name in policy.state_dict())
    move(policy)
    policy.refresh_reference()
    move(policy)
    other = load(model_dir, **settings)
    other.load_state_dict(policy.state_dict())
    assert other.fingerprint() == policy.fingerprint()
    with policy.reference(), other.reference():
        left = policy.logprobs(*batch()).logprobs_BT
        assert torch.equal(other.logprobs(*batch()).logprobs_BT, left)


def test_a_state_of_another_model_is_refused(model_dir: Path):
    state = load(model_dir, lora={"r": 4}).state_dict()
    with pytest.raises(CheckpointError, match="do not fit the policy"):
        load(model_dir).load_state_dict(state)


def test_the_fingerprint_changes_with_one_bit(model_dir: Path):
    policy = load(model_dir)
    before = policy.fingerprint()
    assert load(model_dir).fingerprint() == before
    with torch.no_grad():
        weight = policy.trainable()[0][1]
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(torch.inf))
    assert policy.fingerprint() != before


def test_a_policy_speaks_through_its_chat(model_dir: Path):
    policy = load(model_dir)
    assert 257 in policy.chat.stop_ids
    assert policy.chat is policy.chat
