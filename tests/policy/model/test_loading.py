import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from grpo_cl.errors import ConfigError
from grpo_cl.policy.model import loading
from tiny_policies import batch, byte_tokenizer, load, perturb, save_model


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "llama")


@pytest.mark.slow
def test_initial_adapter_depends_on_the_seed_and_not_on_the_global_generator(model_dir: Path):
    state = torch.get_rng_state()
    fingerprints = [load(model_dir, lora={"r": 4}, seed=seed).fingerprint() for seed in (1, 1, 2)]
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.slow
def test_training_continues_a_saved_adapter_which_becomes_the_reference(
    model_dir: Path, tmp_path: Path
):
    first = load(model_dir, lora={"r": 4})
    perturb(first)
    first.save(tmp_path)
    start = first.logprobs(*batch()).logprobs_BT
    policy = load(tmp_path, lora={"r": 4})
    assert policy.fingerprint() == first.fingerprint()
    perturb(policy)
    with policy.reference():
        assert torch.equal(policy.logprobs(*batch()).logprobs_BT, start)
    with pytest.raises(ConfigError, match=r"set lora\.r=4"):
        load(tmp_path, lora={"r": 8})


@pytest.mark.slow
def test_saved_adapter_is_merged_if_all_weights_are_trained(model_dir: Path, tmp_path: Path):
    first = load(model_dir, lora={"r": 4})
    perturb(first)
    first.save(tmp_path)
    merged = load(tmp_path)
    assert len(merged.trainable()) == len(load(model_dir).trainable())
    expected = first.logprobs(*batch()).logprobs_BT
    assert torch.allclose(merged.logprobs(*batch()).logprobs_BT, expected, atol=1e-4)


def test_dtype_context_and_number_of_parameters_follow_the_config(model_dir: Path):
    policy = load(model_dir, model_dtype="bfloat16", sampling={"max_context": 40})
    assert {weight.dtype for _, weight in policy.trainable()} == {torch.bfloat16}
    assert policy.logprobs(*batch()).logprobs_BT.dtype == torch.float32
    assert policy.context == 40
    assert load(model_dir, sampling={"max_context": 400}).context == 64
    # 2 tables of 300·32; a layer has q, o: 32², k, v: 32·16, three of 32·48, two norms; one norm.
    assert policy.num_parameters == 2 * 9600 + 2 * (2048 + 1024 + 4608 + 64) + 32
    assert policy.tokenizer.pad_token_id == 257


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("./nowhere/at/all", "no model at './nowhere/at/all'; give a local directory"),
        ("/nowhere", "no model at '/nowhere'; give a local directory"),
        ("bad name", "no model at 'bad name'; give a local directory"),
    ],
)
def test_unknown_path_is_a_one_line_error(model: str, message: str):
    with pytest.raises(ConfigError) as caught:
        load(model)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_model_neither_on_disk_nor_on_the_hub_is_a_one_line_error():
    with pytest.raises(ConfigError) as caught:
        load("grpo-cl-nobody/nothing")
    offline = "was not found locally and the hub could not be reached; give a local directory"
    online = "check the name, log in with `hf auth login` if it is gated, or give a local path"
    assert offline in str(caught.value) or online in str(caught.value)
    assert "\n" not in str(caught.value)


def test_directory_without_a_model_is_an_error(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"neither config\.json nor"):
        load(tmp_path)


def test_model_without_weights_is_an_error(tmp_path: Path):
    save_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="cannot load the model of"):
        load(tmp_path)


def test_damaged_weight_file_is_an_error(tmp_path: Path):
    save_model(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ConfigError, match="cannot load the model of"):
        load(tmp_path)


def test_tokenizer_of_another_model_is_an_error(tmp_path: Path):
    save_model(tmp_path)
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([f"<{number}>" for number in range(100)])
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="embeds 300 tokens and its tokenizer has 358"):
        load(tmp_path)


def test_missing_flash_attention_is_an_error(model_dir: Path):
    with pytest.raises(ConfigError, match="set flash_attention=false"):
        load(model_dir, flash_attention=True)


def test_unknown_lora_targets_are_an_error(model_dir: Path):
    with pytest.raises(ConfigError, match=r"lora\.targets nothing do not match"):
        load(model_dir, lora={"r": 4, "targets": ("nothing",)})


@pytest.mark.skipif(loading.TINY_DIR.is_dir(), reason="the embedded policy is there")
def test_missing_embedded_policy_is_an_error():
    with pytest.raises(ConfigError, match="is not in this installation"):
        load("tiny")


@pytest.mark.slow
def test_concurrent_loads_keep_weights_tied(tmp_path: Path):
    folder = save_model(tmp_path, "qwen2")  # whose weights are tied
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: load(folder, kl_coef=0), range(12)))
    module = load(folder, kl_coef=0).module
    weights = dict(module.named_parameters(remove_duplicate=False))
    assert weights["lm_head.weight"] is weights["model.embed_tokens.weight"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", 10**6),
        ("num_hidden_layers", 0),
        ("vocab_size", 10**12),
        ("hidden_size", 1 << 40),
        ("hidden_size", 1 << 16),
        ("max_position_embeddings", 10**15),
    ],
)
def test_model_of_absurd_size_is_refused_before_it_is_built(
    key: str, value: int, model_dir: Path, tmp_path: Path
):
    place = tmp_path / "model"
    shutil.copytree(model_dir, place)
    described = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(described | {key: value}))
    with pytest.raises(ConfigError, match=f"{value}.*fetch the model again or give another one"):
        loading.resolve(str(place))
