from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_cl.errors import CheckpointError, ConfigError
from grpo_cl.policy.model.weights import trainable_parameters
from tiny_policies import TEMPLATE, batch, close, gradients, load, perturb, save_model


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "llama")


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 4])
def test_gradient_checkpointing_gives_the_same_gradients(model_dir: Path, rank: int):
    found: list[dict[str, Tensor]] = []
    calls: list[int] = []
    for checkpointing in (False, True):
        policy = load(model_dir, gradient_checkpointing=checkpointing, lora={"r": rank})
        policy.module.train()
        forwards: list[int] = []
        layer = next(m for m in policy.module.modules() if type(m).__name__ == "LlamaAttention")
        layer.register_forward_hook(lambda *_, forwards=forwards: forwards.append(1))
        found.append(gradients(policy, policy.logprobs(*batch()).logprobs_BT.sum()))
        calls.append(len(forwards))
    assert close(found[0], found[1])
    assert calls == [1, 2]


def test_lora_reference_equals_the_base_model(model_dir: Path):
    base = load(model_dir, kl_coef=0).logprobs(*batch()).logprobs_BT
    policy = load(model_dir, lora={"r": 4})
    perturb(policy)
    perturbed = policy.logprobs(*batch()).logprobs_BT
    before = [name for name, _ in policy.trainable()]
    with policy.reference():
        reference = policy.logprobs(*batch()).logprobs_BT
    assert torch.equal(reference, base)
    assert not reference.requires_grad
    assert not torch.allclose(perturbed, base, atol=1e-3)
    assert torch.equal(policy.logprobs(*batch()).logprobs_BT, perturbed)
    assert [name for name, _ in policy.trainable()] == before


def test_copied_reference_stays_when_the_weights_change(model_dir: Path):
    policy = load(model_dir, kl_coef=0.1)
    start = policy.logprobs(*batch()).logprobs_BT
    perturb(policy)
    with policy.reference():
        assert torch.equal(policy.logprobs(*batch()).logprobs_BT, start)
    assert not torch.allclose(policy.logprobs(*batch()).logprobs_BT, start, atol=1e-3)


@pytest.mark.parametrize("settings", [{"kl_coef": 0.1}, {"kl_coef": 0.0}, {"lora": {"r": 4}}])
def test_refreshed_reference_is_the_policy_at_that_time(model_dir: Path, settings: dict[str, Any]):
    policy = load(model_dir, **settings)
    perturb(policy)
    then = policy.logprobs(*batch()).logprobs_BT
    policy.refresh_reference()
    perturb(policy)
    now = policy.logprobs(*batch()).logprobs_BT
    with policy.reference():
        assert torch.equal(policy.logprobs(*batch()).logprobs_BT, then)
    assert torch.equal(policy.logprobs(*batch()).logprobs_BT, now)


@pytest.mark.parametrize("refreshed", [False, True])
def test_backward_works_after_a_forward_of_the_reference(model_dir: Path, refreshed: bool):
    policy = load(model_dir, lora={"r": 4}, gradient_checkpointing=True)
    perturb(policy)
    policy.module.train()
    if refreshed:
        policy.refresh_reference()
        perturb(policy)
    expected = gradients(policy, policy.logprobs(*batch()).logprobs_BT.sum())
    loss = policy.logprobs(*batch()).logprobs_BT.sum()
    with policy.reference():
        policy.logprobs(*batch())
        assert not policy.module.training
    assert policy.module.training
    found = gradients(policy, loss)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_reference_without_kl_coef_is_an_error(model_dir: Path):
    with (
        pytest.raises(ConfigError, match="set kl_coef above 0"),
        load(model_dir, kl_coef=0).reference(),
    ):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_saved_policy_loads_bit_for_bit_in_transformers(
    tmp_path: Path, architecture: str, dtype: str
):
    policy = load(save_model(tmp_path / "base", architecture), model_dtype=dtype)
    perturb(policy)
    policy.save(tmp_path / "saved")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=dtype)
    loaded = dict(model.named_parameters())
    assert all(torch.equal(loaded[name], weight) for name, weight in policy.trainable())
    assert load(tmp_path / "saved", model_dtype=dtype).fingerprint() == policy.fingerprint()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert tokenizer.chat_template == TEMPLATE
    assert tokenizer("Hä? 12").input_ids == policy.tokenizer("Hä? 12").input_ids
    files = {file.name for file in (tmp_path / "saved").iterdir()}
    assert {"model.safetensors", "generation_config.json", "README.md"} <= files


def test_saved_adapter_loads_bit_for_bit_in_peft(model_dir: Path, tmp_path: Path):
    policy = load(model_dir, lora={"r": 4})
    perturb(policy)
    policy.save(tmp_path)
    assert not (tmp_path / "model.safetensors").exists()
    model = AutoPeftModelForCausalLM.from_pretrained(tmp_path, is_trainable=True)
    loaded = dict(trainable_parameters(model))
    assert all(torch.equal(loaded[name], weight) for name, weight in policy.trainable())
    assert f"started from `{model_dir.name}`" in (tmp_path / "README.md").read_text()


def test_weight_files_have_the_mode_of_the_other_files(model_dir: Path, tmp_path: Path):
    load(model_dir).save(tmp_path)
    modes = {(tmp_path / name).stat().st_mode for name in ("config.json", "model.safetensors")}
    assert len(modes) == 1


def test_licenses_are_copied_with_the_weights(tmp_path: Path):
    base = save_model(tmp_path / "base")
    (base / "LICENSE").write_text("Do what is right.")
    load(base).save(tmp_path / "saved")
    assert (tmp_path / "saved" / "LICENSE").read_text() == "Do what is right."


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"kl_coef": 0.1}, {"lora": {"r": 4}}])
def test_state_restores_weights_and_refreshed_reference(model_dir: Path, settings: dict[str, Any]):
    policy = load(model_dir, **settings)
    assert all(name.startswith("policy.") for name in policy.state_dict())
    perturb(policy)
    policy.refresh_reference()
    perturb(policy)
    other = load(model_dir, **settings)
    other.load_state_dict(policy.state_dict())
    assert other.fingerprint() == policy.fingerprint()
    with policy.reference(), other.reference():
        left = policy.logprobs(*batch()).logprobs_BT
        assert torch.equal(other.logprobs(*batch()).logprobs_BT, left)


@pytest.mark.slow
def test_state_of_another_model_is_an_error(model_dir: Path):
    state = load(model_dir, lora={"r": 4}).state_dict()
    with pytest.raises(CheckpointError, match="do not match the policy"):
        load(model_dir).load_state_dict(state)


@pytest.mark.slow
def test_the_fingerprint_changes_with_one_bit(model_dir: Path):
    policy = load(model_dir)
    before = policy.fingerprint()
    assert load(model_dir).fingerprint() == before
    with torch.no_grad():
        weight = policy.trainable()[0][1]
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(torch.inf))
    assert policy.fingerprint() != before


def test_policy_has_one_chat(model_dir: Path):
    policy = load(model_dir)
    assert 257 in policy.chat.stop_ids
    assert policy.chat is policy.chat
