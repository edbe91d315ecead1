from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

from grpo_cl.errors import ConfigError
from grpo_cl.policy.reach import stretch, stretched_base
from tiny_policies import config, load, save_model


def stretched(tmp_path: Path, architecture: str = "llama", **settings: Any) -> Path:
    """A model that read 64 tokens and now reads 128."""
    model = save_model(tmp_path / "model", architecture)
    stretch(config(model, **settings), tmp_path / "far", tokens=128)
    return tmp_path / "far"


def test_the_slowest_pair_turns_as_often_over_the_new_length_as_over_the_old() -> None:
    # Heads of 8 numbers: pair 3 turns by θ^(-3/4) a token. 10000^(-3/4) is 1/1000.
    base = stretched_base(10_000.0, width=8, factor=2.0)
    assert base == pytest.approx(10_000 * 2 ** (8 / 6))
    assert base ** (-3 / 4) == pytest.approx(1 / 2000)


def test_a_stretched_model_has_the_frequencies_of_the_formula(tmp_path: Path) -> None:
    rotary: Any = load(stretched(tmp_path)).module.get_submodule("model.rotary_emb")
    # 1, 10^-1 · 2^(-1/3), 10^-2 · 2^(-2/3), 10^-3 · 2^-1
    expected = torch.tensor([1.0, 0.0793701, 0.00629961, 0.0005])
    assert torch.allclose(rotary.inv_freq, expected, rtol=1e-5)


def test_a_stretched_model_reads_past_its_old_limit(tmp_path: Path) -> None:
    policy = load(stretched(tmp_path))
    assert policy.context == 128
    ids_BT = torch.arange(128)[None] % 250
    assert policy.logprobs(ids_BT, torch.ones_like(ids_BT)).logprobs_BT.isfinite().all()


def test_weights_stay_and_the_files_say_how_far_the_model_reads(tmp_path: Path) -> None:
    far = stretched(tmp_path)
    assert load(far).fingerprint() == load(tmp_path / "model").fingerprint()
    assert AutoConfig.from_pretrained(far).max_position_embeddings == 128
    assert AutoTokenizer.from_pretrained(far).model_max_length >= 128


def test_a_model_without_rotary_positions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no rotary positions; give another model"):
        stretched(tmp_path, "gpt2")
    assert not (tmp_path / "far").exists()


def test_fewer_tokens_than_a_model_reads_are_refused(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model")
    with pytest.raises(ConfigError, match="already reads 64 tokens and --context is 64"):
        stretch(config(model), tmp_path / "far", tokens=64)


def test_adapters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"set lora\.r=0, or stretch the model first"):
        stretched(tmp_path, lora={"r": 4})
