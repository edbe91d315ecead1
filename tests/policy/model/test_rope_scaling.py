from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

from grpo_cl.errors import ConfigError
from grpo_cl.policy.model.rope_scaling import extend_context, scaled_rope_theta
from tiny_policies import config, load, save_model


def extended(tmp_path: Path, architecture: str = "llama", **settings: Any) -> Path:
    """A model whose context is extended from 64 to 128 tokens."""
    model = save_model(tmp_path / "model", architecture)
    extend_context(config(model, **settings), tmp_path / "extended_dir", tokens=128)
    return tmp_path / "extended_dir"


def test_lowest_frequency_is_divided_by_the_factor() -> None:
    # Head dimension 8: pair 3 rotates by θ^(-3/4) per token. 10000^(-3/4) is 1/1000.
    theta = scaled_rope_theta(10_000.0, width=8, factor=2.0)
    assert theta == pytest.approx(10_000 * 2 ** (8 / 6))
    assert theta ** (-3 / 4) == pytest.approx(1 / 2000)


@pytest.mark.slow
def test_extended_model_has_the_frequencies_of_the_formula(tmp_path: Path) -> None:
    rotary: Any = load(extended(tmp_path)).module.get_submodule("model.rotary_emb")
    # 1, 10^-1 · 2^(-1/3), 10^-2 · 2^(-2/3), 10^-3 · 2^-1
    expected = torch.tensor([1.0, 0.0793701, 0.00629961, 0.0005])
    assert torch.allclose(rotary.inv_freq, expected, rtol=1e-5)


def test_extended_model_computes_logprobs_beyond_its_old_context(tmp_path: Path) -> None:
    policy = load(extended(tmp_path))
    assert policy.context == 128
    ids_BT = torch.arange(128)[None] % 250
    assert policy.logprobs(ids_BT, torch.ones_like(ids_BT)).logprobs_BT.isfinite().all()


@pytest.mark.slow
def test_weights_stay_and_the_files_have_the_new_context_length(tmp_path: Path) -> None:
    extended_dir = extended(tmp_path)
    assert load(extended_dir).fingerprint() == load(tmp_path / "model").fingerprint()
    assert AutoConfig.from_pretrained(extended_dir).max_position_embeddings == 128
    assert AutoTokenizer.from_pretrained(extended_dir).model_max_length >= 128


def test_model_without_rope_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no RoPE; give another model"):
        extended(tmp_path, "gpt2")
    assert not (tmp_path / "extended_dir").exists()


def test_context_that_is_not_longer_is_an_error(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model")
    with pytest.raises(ConfigError, match="already has a context of 64 tokens and --context is 64"):
        extend_context(config(model), tmp_path / "extended_dir", tokens=64)


def test_extending_the_context_with_an_adapter_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"set lora\.r=0, or extend the model first"):
        extended(tmp_path, lora={"r": 4})
